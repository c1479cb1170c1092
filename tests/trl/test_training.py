"""TRL's own trainer with our rewards and environments, on a model that knows nothing."""

import asyncio
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit import ProviderUnavailableError, Sandbox, SandboxSpec
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl import CombinedReward, SandboxEnvironments, SandboxReward
from sandboxkit.testing import FakeProvider
from tests.trl.graders import Length, whole
from tests.trl.tiny import Unreliable, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds

PLAIN = [{"prompt": f"write {number}"} for number in range(16)]
CHAT = [{"prompt": [{"role": "user", "content": "fix it."}], "want": "42"}] * 16


def expected_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """GRPO's formula over those of each group that have a reward; 0 for the others."""
    advantages = torch.zeros_like(rewards)
    for group in range(len(rewards) // 8):
        members = slice(8 * group, 8 * group + 8)
        values = rewards[members]
        known = ~values.isnan()
        of = values[known]
        advantages[members][known] = (of - of.mean()) / (of.std() + 1e-4)
    return advantages


@pytest.mark.parametrize("combined", [False, True])
def test_a_third_of_failures_changes_no_other_advantage(tmp_path: Path, combined: bool) -> None:
    provider = Unreliable()
    subject = SandboxReward(Length(), provider=provider, extract=whole, max_infra_failed_rate=0.9)

    def length(completions: list[str], **_: Any) -> list[float]:
        return [len(text) / 100 for text in completions]

    functions = [CombinedReward([subject, length])] if combined else [subject]
    training = trainer(tmp_path, PLAIN, reward_funcs=functions, config={"max_steps": 5})
    try:
        training.train()
    finally:
        subject.close()
    assert provider.refused > 10
    name = training.reward_func_names[0]
    rewards = torch.tensor(list(training._logs["rewards"][name]))
    advantages = torch.tensor(list(training._logs["advantages"]))
    failed = rewards.isnan()
    assert 0.1 < failed.float().mean() < 0.5
    torch.testing.assert_close(advantages, expected_advantages(rewards), atol=1e-5, rtol=1e-4)
    assert (advantages[failed] == 0).all()
    rates = [entry["infra_failed_rate"] for entry in training.state.log_history[:-1]]
    assert len(rates) == 5
    assert sum(rates) / 5 == pytest.approx(provider.refused / 80)
    assert rates[-1] == failed.float().mean()


def test_what_trl_does_with_one_none_among_numbers(tmp_path: Path) -> None:
    """Why CombinedReward exists: TRL takes that None for 0. If this fails, it is not needed."""

    def absent(completions: list[str], **_: Any) -> list[float | None]:
        return [None if index == 0 else 1.0 for index in range(len(completions))]

    def present(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    training = trainer(tmp_path, PLAIN, reward_funcs=[absent, present])
    training.train()
    assert next(iter(training._logs["advantages"])) < -1


def script(training: Any, *turns: str) -> list[float]:
    """Let every rollout say these turns, again and again; returns when they were asked for."""
    times: list[float] = []
    words = training.processing_class

    def generate(prompt_ids: list[Any], *_: Any, **__: Any) -> tuple[list[Any], None]:
        text = turns[len(times) % len(turns)]
        times.append(time.monotonic())
        ids = [*words(text)["input_ids"], words.eos_token_id]
        return [list(ids) for _ in prompt_ids], None

    training._generate_single_turn = generate
    return times


def call(name: str, **arguments: str) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    found = (await sandbox.read_file("/workspace/answer")).decode().strip()
    if found == row["want"]:
        return Verdict(Outcome.PASSED, 1.0)
    return Verdict(Outcome.FAILED, 0.0, "policy", f"{found!r}")


TURNS = (
    call("write_file", path="/workspace/answer", content="40"),
    call("edit", path="/workspace/answer", old="40", new="41"),
    call("bash", command="echo $(($(cat answer) + 1)) > answer; cat answer"),
    "done",
)
LONG = {"max_completion_length": 1500, "max_tool_calling_iterations": 4}


def test_environments_give_the_tools_and_the_reward(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        training = trainer(tmp_path, CHAT, environment_factory=environments, config=LONG)
        script(training, *TURNS)
        training.train()
        assert list(training._logs["rewards"]["SandboxEnvironment"]) == [1.0] * 16
        said = json.dumps(training._logs["completion"][0])
        assert "wrote 2 bytes to /workspace/answer" in said
        assert "edited /workspace/answer" in said
        assert "42" in said
        listed = environments.session.list().result()
        mine = [i for i in listed if i.tags["sandboxkit.session"] == environments.session.id]
        assert len(mine) == 16, "one sandbox a rollout"
    left = [i.id for i in mine if i.id in {info.id for info in _listed()}]
    assert left == []


def _listed() -> list[Any]:
    return Sandbox.list(provider="local").result()


def test_pooled_environments_begin_each_rollout_afresh(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        training = trainer(
            tmp_path, CHAT, environment_factory=environments, config={**LONG, "max_steps": 2}
        )
        script(training, call("bash", command="ls; echo 42 > answer"), "done")
        training.train()
        observed = [said[1]["content"] for said in training._logs["completion"]]
        assert observed == [""] * 16, "no rollout sees the answer of the one before"
        assert list(training._logs["rewards"]["SandboxEnvironment"]) == [1.0] * 16


def test_a_sandbox_that_cannot_be_made_gives_no_reward(tmp_path: Path) -> None:
    class Full(FakeProvider):
        """Has room for eleven of the sixteen, and none when they are tried again."""

        made = 0

        async def create(self, spec: SandboxSpec) -> str:
            self.made += 1
            if self.made > 16 or self.made % 3 == 0:
                raise ProviderUnavailableError("no capacity today", provider=self.name)
            return await super().create(spec)

    with SandboxEnvironments(judge, provider=Full()) as environments:
        training = trainer(tmp_path, CHAT, environment_factory=environments, config=LONG)
        script(training, call("bash", command="echo 42 > answer"), "done")
        training.train()
        rewards = list(training._logs["rewards"]["SandboxEnvironment"])
        assert sum(math.isnan(value) for value in rewards) == 5
        advantages = list(training._logs["advantages"])
        assert advantages == [0.0] * 16, "all that were graded are equal"


def test_an_answer_that_is_not_there_is_the_models_failure() -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        rollout = environments()
        rollout.reset(want="42")
        assert rollout.get_reward() == 0.0
        assert rollout.read_file("/workspace/nothing").startswith("error: ")
        rollout.write_file("/workspace/twice", "a a")
        assert "occurs 2 times" in rollout.edit("/workspace/twice", "a", "b")
        assert rollout.read_file("relative").startswith("error: ")


def test_a_long_observation_loses_its_middle_and_a_long_command_is_killed() -> None:
    environments = SandboxEnvironments(
        judge, provider=FakeProvider(), observation_limit=100, timeout=0.5
    )
    with environments:
        rollout = environments()
        rollout.reset()
        said = rollout.bash("seq 1000; exit 3")
        assert said.startswith("1\n2\n")
        assert said.endswith("1000\n\n[exit status 3]")
        assert "characters left out" in said
        assert "[killed: it ran longer than 0.5 seconds]" in rollout.bash("echo so far; sleep 60")


def test_resetting_does_not_wait_for_the_sandbox(tmp_path: Path) -> None:
    class Slow(FakeProvider):
        async def create(self, spec: SandboxSpec) -> str:
            await asyncio.sleep(0.5)
            return await super().create(spec)

    with SandboxEnvironments(judge, provider=Slow()) as environments:
        rollouts = [environments() for _ in range(8)]
        started = time.monotonic()
        for rollout in rollouts:
            rollout.reset(want="42")
        assert time.monotonic() - started < 0.4
        for rollout in rollouts:
            assert rollout.bash("echo 42 > answer") == ""
        assert [rollout.get_reward() for rollout in rollouts] == [1.0] * 8
