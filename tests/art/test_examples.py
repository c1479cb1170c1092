"""The programs around a training loop run and print exactly what they should."""

import json
import math
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, run_example

FOLDER = ROOT / "examples" / "rl_training"
EXPECTED = Path(__file__).parent / "expected"
ARGUMENTS = {"mbpp_rollouts": ["--dry-run"]}
TRAINER = FOLDER / "trl_grpo.py"
PROGRAMS = sorted({*FOLDER.glob("*.py")} - {TRAINER, FOLDER / "__init__.py"})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_exactly_what_is_expected(path: Path, provider: str) -> None:
    printed = run_example(path, provider, *ARGUMENTS.get(path.stem, []))
    assert printed == (EXPECTED / f"{path.stem}.txt").read_text()


@pytest.mark.timeout(300)
def test_the_trainer_trains_and_keeps_its_metrics(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    options = ["--tiny", "--steps", "2", "--sandboxes", "4", "--out", str(tmp_path)]
    # TRL and transformers warn of themselves.
    printed = run_example(TRAINER, provider, *options, warnings="ignore")
    assert printed == "2 steps; see metrics.jsonl and reward.svg\n"
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in steps] == [1, 2]
    for each in steps:
        assert math.isclose(each["rewards/pass_rate/mean"], each["reward"], rel_tol=1e-5)
        assert each["infra_failed_rate"] == 0
        assert each["outcome/passed"] + each["outcome/failed"] == 1
    # 32 choices among 8 texts, of which two are right.
    assert sum(each["outcome/passed"] for each in steps) > 0
    assert "<polyline" in (tmp_path / "reward.svg").read_text()
