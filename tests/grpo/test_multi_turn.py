"""A model learns to read what its tools say: it writes, runs, reads the error, and fixes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit import Session
from sandboxkit.integrations.grpo import plot

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(600)


def test_the_reward_rises_over_thirty_steps(tmp_path: Path) -> None:
    folder = tmp_path / f"turns-{os.getpid()}"
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / "grpo" / "demo.py"), "repair"),
            *(f"--folder={folder}", "--set=run.steps=30", "--set=grading.provider=local"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    rows = [row for row in plot.rows(folder / "run" / "metrics.jsonl") if "reward" in row]
    assert len(rows) == 30
    rewards = [float(row["reward"] or 0) for row in rows]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert first < 0.6
    assert last > first + 0.25
    # More than one call a rollout: what the first said was read.
    assert all(float(row["tool_calls"] or 0) > 1.2 * float(row["rollouts"] or 0) for row in rows)
    assert {row["infra_failed_rate"] for row in rows} == {0.0}
    with Session("local") as session:
        assert not session.list(tags=("grpo", "run:run")).result(30)
