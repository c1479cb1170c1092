"""Both demos learn: programs that nobody showed the model, and reading what a tool says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Session
from sandboxkit.integrations._training import plot

DEMO = Path(__file__).resolve().parents[2] / "examples" / "grpo" / "demo.py"

pytestmark = [pytest.mark.timeout(900)]


def demo(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run it as `make grpo-demo` does, and return the metrics."""
    run = folder / folder.name  # whose name is its sandboxes' tag, and no other test's
    settings = [f"--folder={folder}", f"--set=run.folder={run}", "--set=grading.provider=local"]
    done = subprocess.run(
        [sys.executable, str(DEMO), *arguments, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    with Session("local") as session:
        assert not session.list(tags=("grpo", f"run:{run.name}")).result(30)
    return plot.rows(run / "metrics.jsonl")


def test_it_solves_what_it_has_never_seen(tmp_path: Path) -> None:
    """A model so small can fall again, by the last digit of a gradient: one of two seeds does not."""
    for seed in range(2):
        folder = tmp_path / f"compose-{os.getpid()}-{seed}"
        rows = demo(folder, f"--set=run.seed={seed}")
        held_out = [row["held_out"] for row in rows if "held_out" in row]
        assert held_out[0] < 0.2
        if held_out[-1] >= 0.85:  # 0.91 to 0.95 with five seeds
            break
    assert held_out[-1] >= 0.85
    rewards = [row["reward"] for row in rows if "reward" in row]
    assert len(rewards) == 50
    assert sum(rewards[-10:]) / 10 >= 0.7
    run = folder / folder.name
    assert (run / "export" / "model.safetensors").exists()
    assert (run / "reward.svg").read_text().startswith("<svg")
    assert json.loads((run / "config.json").read_text())["run"]["steps"] == 50


@pytest.mark.nightly
def test_it_learns_to_write_run_read_the_error_and_fix(tmp_path: Path) -> None:
    folder = tmp_path / f"repair-{os.getpid()}"
    rows = [row for row in demo(folder, "repair", "--set=run.steps=30") if "reward" in row]
    assert len(rows) == 30
    rewards = [float(row["reward"] or 0) for row in rows]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert first < 0.6
    assert last > first + 0.25
    # More than one call a rollout: what the first said was read.
    assert all(float(row["tool_calls"] or 0) > 1.2 * float(row["rollouts"] or 0) for row in rows)
    assert {row["infra_failed_rate"] for row in rows} == {0.0}
