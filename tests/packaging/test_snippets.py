"""Every Python block of the documentation runs, and prints what the page says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.snippets import BLOCK, snippets
from tests.packaging.test_surface import ROOT, tracked

pytestmark = pytest.mark.timeout(320)
PAGES = [path for path in tracked("docs/*.md", "README.md") if path.name != "options.md"]
PLAYED = [path for path in PAGES if snippets(path.read_text())]
WITH_TRL = [path for path in PLAYED if "integrations.trl" in path.read_text()]
"""TRL takes each process ten seconds to import: tests/trl plays these pages."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def play(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's blocks in a process of their own, with the local provider."""
    environment = {
        **os.environ,
        "SANDBOXKIT_PROVIDER": "local",
        "PYTEST_ADDOPTS": "",
        "PYTHONPATH": str(ROOT),
        "SANDBOXKIT_STATE_DIR": str(folder / "state"),  # a page may store a dataset
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # torch makes it as it is imported
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.packaging.snippets", str(page)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("page", [page for page in PLAYED if page not in WITH_TRL], ids=name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path) -> None:
    done = play(page, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_no_block_escapes_by_its_name_or_its_page() -> None:
    assert WITH_TRL, "tests/trl plays them"
    names = {"py", "python3", "pycon", "Python"}
    assert len(PAGES) > 20
    languages = {
        name(page): {block["language"] for block in BLOCK.finditer(page.read_text())}
        for page in PAGES
    }
    assert {page: found & names for page, found in languages.items() if found & names} == {}


def test_a_page_that_says_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = Path(__file__).with_name("page.txt").read_text()
    page.write_text(text.format(said="1"))
    done = play(page, tmp_path)
    assert done.returncode == 0, done.stderr
    page.write_text(text.format(said="2"))
    done = play(page, tmp_path)
    assert done.returncode == 1
    assert f"{page}:20 printed\n1\nnot\n2\n" in done.stderr
