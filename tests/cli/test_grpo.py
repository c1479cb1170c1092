"""`grpo plot` draws what a run has written, without the packages that training needs."""

import json
from pathlib import Path

from tests.cli.conftest import Cli

ROWS = [
    {"step": 0, "held_out": 0.25},
    *({"step": step, "reward": step / 4} for step in (1, 2, 3, 4)),
    {"step": 4, "held_out": 1.0},
]


def test_a_run_is_drawn_as_text_and_as_a_file(cli: Cli, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in ROWS]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 5, "rew')
    result = cli("grpo", "plot", str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    shown = result.stdout.splitlines()
    assert shown[0] == " 1.00 |" + " " * 64 + "o"
    assert shown[3] == " 0.75 |" + " " * 48 + "·"
    assert shown[9] == " 0.25 |o" + " " * 15 + "·"
    assert shown[-2].endswith("step 4")
    assert (tmp_path / "reward.svg").read_text().count("<polyline") == 2


def test_a_run_before_its_first_step_and_no_run_at_all(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert cli("grpo", "plot", str(tmp_path)).stdout == "no step yet\n"
    result = cli("grpo", "plot", str(tmp_path / "none"))
    assert result.returncode == 2
    assert "has no metrics.jsonl: give a run's folder" in result.stderr


def test_drawing_loads_no_torch(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "torch.py").write_text("raise AssertionError('torch was imported')")
    environment = {"PYTHONPATH": str(tmp_path)}
    assert cli("grpo", "plot", str(tmp_path), env=environment).returncode == 0
