"""The programs around a training loop run and print exactly what they should."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, run_example

FOLDER = ROOT / "examples" / "rl_training"
EXPECTED = Path(__file__).parent / "expected"
ARGUMENTS = {"mbpp_rollouts": ["--dry-run"]}
TRAINER = FOLDER / "trl_grpo.py"
# Those for TRL are in tests/trl.
PROGRAMS = sorted({*FOLDER.glob("*.py")} - {*FOLDER.glob("trl_*.py"), FOLDER / "__init__.py"})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_exactly_what_is_expected(path: Path) -> None:
    printed = run_example(path, "local", *ARGUMENTS.get(path.stem, []))
    assert printed == (EXPECTED / f"{path.stem}.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ([], 2, "--dry-run for a script, or --base-url URL for a server"),
        (["--base-url", "http://127.0.0.1:9/v1"], 1, "no rollout has a reward; the first: "),
    ],
)
def test_rollouts_without_a_model_fail(arguments: list[str], status: int, expected: str) -> None:
    command = [sys.executable, str(FOLDER / "mbpp_rollouts.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == status
    assert expected in done.stderr


@pytest.mark.timeout(300)
def test_the_trainer_keeps_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options = ["--tiny", "--sandboxes", "4", "--out", str(tmp_path)]
    # As Python has it by itself: what it would warn a user of is an error of the example's.
    printed = run_example(TRAINER, "local", *options, warnings="default::FutureWarning")
    assert f"see {tmp_path}/metrics.jsonl and {tmp_path}/reward.svg\n" in printed
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert printed.startswith(f"{len(steps)} steps, mean reward from {steps[0]['reward']:.2f} to ")
    assert [each["step"] for each in steps] == list(range(1, len(steps) + 1))
    assert len(steps) < 40, "it stops when it has learned"
    assert sum(each["reward"] for each in steps[-4:]) >= 4 * 0.9
    for each in steps:
        assert math.isclose(each["rewards/pass_rate/mean"], each["reward"], rel_tol=1e-5)
        assert each["infra_failed_rate"] == 0
        assert each["outcome/passed"] + each["outcome/failed"] == 1
    # 32 choices among 8 texts, of which two are right.
    assert sum(each["outcome/passed"] for each in steps) > 0
    assert "<polyline" in (tmp_path / "reward.svg").read_text()
