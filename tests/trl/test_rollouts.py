"""SandboxRollouts as the rollout_func of TRL's own trainer."""

from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxRollouts
from sandboxkit.testing import FakeProvider
from tests.trl.scripted import CHAT, LONG, TURNS, Meeting, call, judge, script
from tests.trl.tiny import rewards, train, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds
ANSWER = (call("bash", command="echo 42 > answer"), "done")


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


def test_all_rollouts_of_a_batch_use_their_tools_at_once(tmp_path: Path) -> None:
    # With fewer at a time, no command would ever begin.
    with SandboxEnvironments(judge, provider=Meeting(16)) as environments:
        assert rewards(train(tmp_path, SandboxRollouts(environments), ANSWER)) == [1.0] * 16


def test_a_model_that_knows_nothing_can_be_trained_so(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        rollouts = SandboxRollouts(environments)
        training = train(tmp_path, rollouts, (), max_steps=2, max_completion_length=16)
        assert rewards(training) == [0.0] * 16


def test_each_prompt_gets_its_own_row(tmp_path: Path) -> None:
    said = [[{"role": "user", "content": f"say {number}"}] for number in range(2)]
    rows = [{"prompt": prompt, "want": str(number)} for number, prompt in enumerate(said)]
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        turns = (call("bash", command="echo 1 > answer"), "done")
        found = rewards(train(tmp_path, SandboxRollouts(environments), turns, rows))
        assert sorted(found) == [0.0] * 8 + [1.0] * 8


def test_a_missing_tool_and_a_call_that_does_not_fit_are_answered(tmp_path: Path) -> None:
    turns = (call("get_reward"), call("bash", cmd="ls"), "done")
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        training = train(tmp_path, SandboxRollouts(environments), turns)
        output = training._logs["completion"][0][0]["content"]
        tools = "there is no tool 'get_reward'; there are bash, edit, read_file, write_file"
        assert tools in output
        assert "unexpected keyword argument 'cmd'" in output


def test_what_a_tool_says_is_left_out_where_it_does_not_fit(tmp_path: Path) -> None:
    turns = (call("bash", command="echo 42 > answer; seq 1000"),)
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        training = train(tmp_path, SandboxRollouts(environments), turns, max_completion_length=300)
        assert "1000" not in str(training._logs["completion"][0]).partition("seq 1000")[2]
        assert rewards(training) == [1.0] * 16


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
