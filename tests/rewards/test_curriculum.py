"""The tasks to train on, by the rewards that a run's records keep."""

from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations._training import records
from sandboxkit.integrations._training.rollout_record import RolloutRecord
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trainers import curriculum, kept_rewards


def test_tasks_that_always_pass_or_never_do_are_dropped_and_the_easiest_come_first() -> None:
    rewards = {
        "always": [0.0, *[1.0] * 4],  # the policy has learnt it since
        "never": [0.0] * 4,
        "hard": [1.0, 0.0, 0.0, 0.0, 1.0],
        "easy": [1.0, 1.0, 0.0, 1.0],
        "rarely seen": [0.0] * 3,
        "parts": [0.75, 0.5, 0.75, 0.5],  # never passes, but its groups have a gradient
    }
    tasks = ["new", *rewards]
    chosen = [tasks[index] for index in curriculum(tasks, rewards, samples=4)]
    assert chosen == ["easy", "parts", "hard", "rarely seen", "new"]


def test_the_records_of_all_ranks_give_rewards_by_task_or_prompt(tmp_path: Path) -> None:
    def row(prompt: str, verdict: Verdict, task_id: int | None = None) -> dict[str, object]:
        about: dict[str, Any] = {"group": 0, "member": 0, "tokens": {}, "seconds": {}, "turns": ()}
        return RolloutRecord(
            task_id=task_id, verdict=verdict, reward=verdict.reward, prompt=prompt, **about
        ).json()

    passed, failed = Verdict(Outcome.PASSED, 1.0), Verdict(Outcome.FAILED, 0.0)
    lost = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "lost")
    with pytest.raises(ConfigurationError, match="no rollouts with a reward"):
        kept_rewards(tmp_path)
    (tmp_path / "rank-1").mkdir()
    records.write(tmp_path, 1, [row("add", passed), row("one", failed, 7), row("add", lost)])
    records.write(tmp_path, 2, [row("add", failed), row("another", passed, 7)])
    records.write(tmp_path / "rank-1", 1, [row("add", passed)])
    assert kept_rewards(tmp_path) == {"add": [1.0, 1.0, 0.0], "7": [0.0, 1.0]}
