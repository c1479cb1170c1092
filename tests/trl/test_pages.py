"""The blocks of the pages about TRL run and print what the pages say."""

from pathlib import Path

import pytest

from tests.packaging.test_snippets import WITH_TRL, name, play


@pytest.mark.parametrize("page", WITH_TRL, ids=name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(page: Path, tmp_path: Path) -> None:
    done = play(page, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
