"""SandboxRollouts as the rollout_func of TRL's own trainer."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxRollouts
from sandboxkit.testing import FakeProvider
from tests.trl.scripted import CHAT, LONG, TURNS, Meeting, call, judge, script
from tests.trl.tiny import rewards, train, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds
TRAININGS = tomllib.loads((Path(__file__).parent / "trainings.toml").read_text())["training"]


def test_the_tokens_are_those_of_environment_mode(tmp_path: Path) -> None:
    def tokens(**options: Any) -> list[Any]:
        options |= {"reward_funcs": [EnvironmentReward()], "config": LONG}
        training = trainer(tmp_path, CHAT, **options)
        script(training, *TURNS)
        seen: list[Any] = []
        generate = training._generate

        def record(prompts: list[Any]) -> Any:
            made = generate(prompts)
            seen.extend(made[:3])  # of prompts and completions, and which the model wrote
            return made

        training._generate = record
        training.train()
        return seen

    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        theirs = tokens(environment_factory=environments)
        ours = tokens(rollout_func=SandboxRollouts(environments))
    assert ours == theirs
    assert 0 in ours[2][0]


def test_log_probabilities_are_kept_for_what_the_model_wrote(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        rollouts = SandboxRollouts(environments)
        graded = {"reward_funcs": [EnvironmentReward()], "config": LONG}
        training = trainer(tmp_path, CHAT, rollout_func=rollouts, **graded)
        script(training, call("bash", command="true"), "done")
        say = training._generate_single_turn

        def with_logprobs(prompt_ids: list[Any], *_: Any, **options: Any) -> tuple[Any, Any]:
            ids, _none = say(prompt_ids, **options)
            return ids, [[-1.0] * len(each) for each in ids]

        training._generate_single_turn = with_logprobs
        made = training.rollout_func([CHAT[0]["prompt"]] * 2, training)
        columns = made["completion_ids"], made["env_mask"], made["logprobs"]
        for ids, mask, logprobs in zip(*columns, strict=True):
            assert len(ids) == len(mask)
            assert logprobs == [-1.0 if wrote else 0.0 for wrote in mask]
            assert 0 in mask


def test_each_prompt_gets_its_own_row(tmp_path: Path) -> None:
    said = [[{"role": "user", "content": f"say {number}"}] for number in range(2)]
    rows = [{"prompt": prompt, "want": str(number)} for number, prompt in enumerate(said)]
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        turns = (call("bash", command="echo 1 > answer"), "done")
        found = rewards(train(tmp_path, SandboxRollouts(environments), turns, rows))
        assert sorted(found) == [0.0] * 8 + [1.0] * 8


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: case["name"])
def test_a_training_shows_and_rewards_so(tmp_path: Path, case: dict[str, Any]) -> None:
    turns = [t if isinstance(t, str) else call(**t) for t in case["turns"]]
    provider = Meeting(case["meeting"]) if "meeting" in case else FakeProvider()
    options = case.get("options", {})
    with SandboxEnvironments(judge, provider=provider, **options) as environments:
        mode = SandboxRollouts(environments) if "mode" in case else environments
        reward = False if options else None
        training = train(tmp_path, mode, turns, reward=reward, **case.get("config", {}))
        names = {"name": "RewardedSandboxEnvironment"} if options else {}
        assert rewards(training, **names) == [case["reward"]] * 16
        shown = str(training._logs["completion"][0])
        assert [part for part in case.get("has", ()) if part not in shown.replace("\\'", "'")] == []
        assert case.get("lacks", "no such") not in shown
        if options:
            with pytest.raises(ConfigurationError, match="count twice"):
                EnvironmentReward()(["p"], ["c"], environments=[environments()])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([CHAT[0], {**CHAT[0], "want": "43"}], "two rows differ and have the same prompt"),
        ([{"prompt": "fix it.", "want": "42"}] * 16, "prompts that are messages"),
    ],
)
def test_prompts_that_are_text_or_not_told_apart_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    with (
        SandboxEnvironments(judge, provider=FakeProvider()) as environments,
        pytest.raises(ConfigurationError, match=said),
    ):
        train(tmp_path, SandboxRollouts(environments), (), rows)
