"""SandboxReward in a real GRPOTrainer, on a tiny model."""

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from sandboxkit import ConfigurationError, ProcessResult, SandboxError, Session
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl import (
    AsyncSandboxReward,
    SandboxReward,
    TooManyFailuresError,
    mask_together,
)
from sandboxkit.testing import FakeProvider
from tests.trl.tiny import FailingProvider, model, options, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Length:
    """Scores what a command in a sandbox says of the submission: a grader with real sandboxes."""

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        data = submission.encode(errors="replace")
        try:
            result: ProcessResult = await session.run(["cksum"], stdin=data)
        except ConfigurationError:
            raise
        except SandboxError as error:
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", str(error))
        score = int(result.stdout.split()[0]) % 97 / 100
        return Verdict(Outcome.FAILED, score, "policy", "scored")


def same(text: str) -> str:
    return text


def trainer(folder: Path, rewards: Any, **more: Any) -> GRPOTrainer:
    words = tokenizer()
    rows = [{"prompt": f"def f{i}(x):", "task_id": i} for i in range(40)]
    return GRPOTrainer(
        model=model(words),
        reward_funcs=rewards,
        args=GRPOConfig(**options(str(folder), **more)),
        train_dataset=Dataset.from_list(rows),
        processing_class=words,
    )


class Recorded:
    """What the trainer made of each batch: its rewards and its own advantages."""

    def __init__(self, trainer: GRPOTrainer) -> None:
        self.rewards: list[torch.Tensor] = []
        self.advantages: list[torch.Tensor] = []
        calculate = trainer._calculate_rewards
        score = trainer._generate_and_score_completions

        def calculated(*args: Any) -> torch.Tensor:
            self.rewards.append(calculate(*args))
            return self.rewards[-1]

        def scored(*args: Any) -> Any:
            output = score(*args)
            self.advantages.append(output["advantages"])
            return output

        trainer._calculate_rewards = calculated
        trainer._generate_and_score_completions = scored


def advantages_of_survivors(rewards: Sequence[float], group: int) -> list[float]:
    """By hand: each group without its masked samples, and 0 for those."""
    result: list[float] = []
    for start in range(0, len(rewards), group):
        rows = torch.tensor(rewards[start : start + group], dtype=torch.float64)
        alive = rows[~rows.isnan()]
        scaled = (rows - alive.mean()) / (alive.std() + 1e-4)
        result += [0.0 if row.isnan() else float(row) for row in scaled]
    return result


@pytest.mark.parametrize("kind", [SandboxReward, AsyncSandboxReward])
def test_a_third_of_the_sandboxes_failing_changes_no_advantage_of_the_others(
    kind: type[SandboxReward], tmp_path: Path
) -> None:
    provider = FailingProvider(0.3)
    with kind(Length(), provider=provider, extract=same, retry_budget=0) as reward:
        run = trainer(tmp_path, reward)
        seen = Recorded(run)
        run.train()
    assert len(seen.rewards) == len(seen.advantages) == 5
    masked = 0
    for rewards, advantages in zip(seen.rewards, seen.advantages, strict=True):
        column = rewards[:, 0].tolist()
        wanted = advantages_of_survivors(column, 4)
        assert advantages.tolist() == pytest.approx(wanted, abs=1e-3)
        gone = [i for i, value in enumerate(column) if value != value]
        assert all(advantages[i] == 0 for i in gone)
        masked += len(gone)
    assert masked / 40 == pytest.approx(0.3, abs=0.05)
    logged = [each["infra_failed_rate"] for each in run.state.log_history if "reward" in each]
    assert sum(logged) / len(logged) == pytest.approx(masked / 40)
    assert any("rewards/sandbox_reward/mean" in each for each in run.state.log_history)


def test_failures_within_the_budget_are_graded_again(tmp_path: Path) -> None:
    provider = FailingProvider(0.3)
    seen: dict[str, float] = {}
    with SandboxReward(Length(), provider=provider, extract=same, retry_budget=8) as reward:
        rewards = reward(
            prompts=["p"] * 5,
            completions=[str(i) for i in range(5)],
            log_metric=lambda name, value: seen.update({name: value}),
        )
    assert None not in rewards
    assert seen["infra_failed_rate"] == 0


def test_one_none_among_numbers_does_not_become_a_zero(tmp_path: Path) -> None:
    def second(completions: Sequence[str], **_: Any) -> list[float]:
        return [5.0 + len(each) / 10 for each in completions]

    provider = FailingProvider(0.3)
    with SandboxReward(Length(), provider=provider, extract=same, retry_budget=0) as reward:
        run = trainer(tmp_path, mask_together(reward, second), max_steps=3)
        seen = Recorded(run)
        run.train()
    masked = 0
    for rewards, advantages in zip(seen.rewards, seen.advantages, strict=True):
        assert torch.equal(rewards[:, 0].isnan(), rewards[:, 1].isnan())
        wanted = advantages_of_survivors(rewards.sum(dim=1).tolist(), 4)
        assert advantages.tolist() == pytest.approx(wanted, abs=1e-2)
        masked += int(rewards[:, 0].isnan().sum())
    assert masked > 0
    names = set().union(*run.state.log_history)
    assert {"rewards/sandbox_reward/mean", "rewards/second/mean"} <= names


def test_trl_itself_counts_a_none_among_numbers_as_zero(tmp_path: Path) -> None:
    """Why `mask_together` exists; if this fails, TRL has changed and it can go."""

    def first(completions: Sequence[str], **_: Any) -> list[float | None]:
        return [None, *([1.0] * (len(completions) - 1))]

    def second(completions: Sequence[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    run = trainer(tmp_path, [first, second], max_steps=1)
    seen = Recorded(run)
    run.train()
    assert seen.advantages[0].min() < -1


def test_a_whole_failed_group_raises() -> None:
    with (
        SandboxReward(Length(), provider=FailingProvider(1), extract=same) as reward,
        pytest.raises(TooManyFailuresError, match="whole group"),
    ):
        reward(prompts=["p", "p"], completions=["a", "b"])


def test_too_high_a_rate_of_failures_raises() -> None:
    provider = FailingProvider(0.5)
    with (
        SandboxReward(
            Length(), provider=provider, extract=same, retry_budget=0, max_infra_failed_rate=0.2
        ) as reward,
        pytest.raises(TooManyFailuresError, match=r"max_infra_failed_rate=0\.2"),
    ):
        reward(prompts=["p"] * 4, completions=["a", "b", "c", "d"])


def test_equal_code_for_equal_rows_is_graded_once() -> None:
    seen: dict[str, float] = {}
    with SandboxReward(Length(), provider=FakeProvider(), extract=same) as reward:
        rewards = reward(
            prompts=["p"] * 4,
            completions=["a", "a", "a", "a"],
            task_id=[1, 1, 1, 2],
            log_metric=lambda name, value: seen.update({name: value}),
        )
    assert len(set(rewards)) == 1
    assert seen["duplicate_rate"] == 0.5


def test_no_code_and_banned_code_score_zero_without_a_sandbox() -> None:
    with SandboxReward(Length(), provider=FailingProvider(1)) as reward:
        rewards = reward(
            prompts=["p", "q"],
            completions=["no code", "<answer>sorted([1])</answer>"],
            banned_patterns=[[], ["sorted"]],
        )
    assert rewards == [0.0, 0.0]


def test_it_pickles_by_provider_name_and_says_why_not_by_object() -> None:
    reward = SandboxReward(Length(), provider="local", extract=same)
    assert pickle.loads(pickle.dumps(reward)).__name__ == "sandbox_reward"
    with pytest.raises(ConfigurationError, match="by name"):
        pickle.dumps(SandboxReward(Length(), provider=FakeProvider()))
