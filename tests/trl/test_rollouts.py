"""SandboxRollouts as the rollout_func of TRL's own trainer."""

import math
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, SandboxSpec
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxRollouts
from sandboxkit.testing import FakeProvider
from tests.trl.scripted import CHAT, LONG, TURNS, Meeting, call, judge, script
from tests.trl.tiny import trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


def rolling(
    folder: Path, environments: SandboxEnvironments, rows: list[dict[str, Any]], **config: Any
) -> Any:
    """A trainer that rolls out so."""
    return trainer(
        folder,
        rows,
        rollout_func=SandboxRollouts(environments),
        reward_funcs=[EnvironmentReward()],
        config={**LONG, **config},
    )


def test_rollouts_give_the_tools_the_reward_and_a_sandbox_each(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        training = rolling(tmp_path, environments, CHAT, max_steps=2, per_device_train_batch_size=8)
        script(training, *TURNS)
        training.train()
        assert list(training._logs["rewards"]["environment_reward"]) == [1.0] * 8
        output = str(training._logs["completion"][0])
        assert "wrote 2 bytes to /workspace/answer" in output
        assert "edited /workspace/answer" in output
        assert [each["infra_failed_rate"] for each in training.state.log_history[:2]] == [0.0] * 2
        listed = environments.session.list().result()
        mine = [i for i in listed if i.tags.get("sandboxkit.session") == environments.session.id]
        assert len(mine) == 8


def test_the_tokens_are_those_of_environment_mode(tmp_path: Path) -> None:
    def tokens(**options: Any) -> list[Any]:
        training = trainer(
            tmp_path, CHAT, reward_funcs=[EnvironmentReward()], config=LONG, **options
        )
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
        training = rolling(tmp_path, environments, CHAT)
        script(training, call("bash", command="true"), "done")
        say = training._generate_single_turn

        def with_logprobs(prompt_ids: list[Any], *_: Any, **options: Any) -> tuple[Any, Any]:
            ids, _none = say(prompt_ids, **options)
            return ids, [[-1.0] * len(each) for each in ids]

        training._generate_single_turn = with_logprobs
        made = training.rollout_func([CHAT[0]["prompt"]] * 2, training)
        for ids, mask, logprobs in zip(
            made["completion_ids"], made["env_mask"], made["logprobs"], strict=True
        ):
            assert len(ids) == len(mask)
            assert logprobs == [-1.0 if wrote else 0.0 for wrote in mask]
            assert 0 in mask


def test_all_rollouts_of_a_batch_use_their_tools_at_once(tmp_path: Path) -> None:
    provider = Meeting(16)  # with fewer at a time, no command would ever begin
    with SandboxEnvironments(judge, provider=provider) as environments:
        training = rolling(tmp_path, environments, CHAT)
        script(training, call("bash", command="echo 42 > answer"), "done")
        training.train()
        assert list(training._logs["rewards"]["environment_reward"]) == [1.0] * 16
    assert provider.most == 16


def test_a_model_that_knows_nothing_can_be_trained_so(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        training = rolling(tmp_path, environments, CHAT, max_steps=2, max_completion_length=16)
        training.train()
        assert list(training._logs["rewards"]["environment_reward"]) == [0.0] * 16


def test_each_prompt_gets_its_own_row(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"say {number}"}], "want": str(number)}
        for number in range(2)
    ]
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        training = rolling(tmp_path, environments, rows)
        script(training, call("bash", command="echo 1 > answer"), "done")
        training.train()
        rewards = list(training._logs["rewards"]["environment_reward"])
        assert sorted(rewards) == [0.0] * 8 + [1.0] * 8


def test_a_sandbox_that_cannot_be_made_masks_its_rollout(tmp_path: Path) -> None:
    class Full(FakeProvider):
        async def create(self, spec: SandboxSpec) -> str:
            if spec.files["/workspace/number"] == b"1":
                raise ProviderUnavailableError("no capacity today", provider=self.name)
            return await super().create(spec)

    rows = [{**row, "files": {"/workspace/number": str(at % 4)}} for at, row in enumerate(CHAT)]
    numbers = iter(rows)
    with SandboxEnvironments(judge, provider=Full()) as environments:
        training = trainer(
            tmp_path,
            CHAT,
            rollout_func=SandboxRollouts(environments, row=lambda prompt: next(numbers)),
            reward_funcs=[EnvironmentReward()],
            config=LONG,
        )
        script(training, call("bash", command="echo 42 > answer"), "done")
        training.train()
        rewards = list(training._logs["rewards"]["environment_reward"])
        assert [math.isnan(value) for value in rewards] == [False, True, False, False] * 4
        assert training.state.log_history[0]["infra_failed_rate"] == 0.25


def test_a_tool_that_is_not_there_and_a_call_that_does_not_fit_are_answered(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        training = rolling(tmp_path, environments, CHAT)
        script(training, call("get_reward"), call("bash", cmd="ls"), "done")
        training.train()
        output = training._logs["completion"][0][0]["content"]
        assert (
            "there is no tool 'get_reward'; there are bash, edit, read_file, write_file" in output
        )
        assert "unexpected keyword argument 'cmd'" in output


def test_what_a_tool_says_is_left_out_where_it_does_not_fit(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        training = rolling(tmp_path, environments, CHAT, max_completion_length=300)
        script(training, call("bash", command="echo 42 > answer; seq 1000"))
        training.train()
        assert "1000" not in str(training._logs["completion"][0]).partition("seq 1000")[2]
        assert list(training._logs["rewards"]["environment_reward"]) == [1.0] * 16


def test_prompts_that_are_text_or_not_told_apart_are_refused(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        two = [{**CHAT[0], "want": "42"}, {**CHAT[0], "want": "43"}]
        with pytest.raises(ConfigurationError, match="two rows differ and have the same prompt"):
            rolling(tmp_path, environments, two).train()
        with pytest.raises(ConfigurationError, match="prompts that are messages"):
            rolling(tmp_path, environments, [{"prompt": "fix it.", "want": "42"}] * 16).train()
