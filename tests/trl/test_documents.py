"""The examples and the pages about TRL run and print exactly what they should."""

import runpy
from pathlib import Path

import pytest

import sandboxkit.integrations.trl  # noqa: F401 - not in a test, because its imports leave files
from tests.packaging.test_snippets import WITH_TRL, name, play

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).parent / "expected"
FOLDER = ROOT / "examples" / "rl_training"
PIECES = sorted({*FOLDER.glob("trl_*.py")} - {FOLDER / "trl_grpo.py"})

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.stem)
def test_a_piece_prints_its_output(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: importing TRL takes longer than all of them."""
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "local")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out == (EXPECTED / f"{path.stem}.txt").read_text()


@pytest.mark.parametrize("page", WITH_TRL, ids=name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path) -> None:
    done = play(page, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
