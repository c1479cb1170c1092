"""The programs around a training loop run and print exactly what they should."""

from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, run_example

FOLDER = ROOT / "examples" / "rl_training"
EXPECTED = Path(__file__).parent / "expected"
ARGUMENTS = {"mbpp_rollouts": ["--dry-run"]}
PROGRAMS = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_exactly_what_is_expected(path: Path, provider: str) -> None:
    printed = run_example(path, provider, *ARGUMENTS.get(path.stem, []))
    assert printed == (EXPECTED / f"{path.stem}.txt").read_text()
