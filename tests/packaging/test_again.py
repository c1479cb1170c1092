"""A test that fails runs again only where a list says why, and only as often as it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import LIST, NEVER, STATUS_AGAIN, Excused, excused, may_run_again

ROOT = Path(__file__).resolve().parents[2]
LISTED = [
    Excused("tests/docker/test_a.py", 2, "why"),
    Excused("tests/swe/test_b.py::test_x", 1, ""),
]


def test_the_list_names_tests_that_are_there_and_says_why() -> None:
    for each in excused(LIST.read_text()):
        path, _, name = each.prefix.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), each
        assert not path.startswith(NEVER), each
        assert each.times in (1, 2), each
        assert len(each.why.split()) > 5, each


def test_what_must_never_run_again_is_there() -> None:
    assert all((ROOT / folder).is_dir() for folder in NEVER)


@pytest.mark.parametrize(
    ("failed", "runs", "may"),
    [
        (["tests/docker/test_a.py::test_1", "tests/docker/test_a.py::test_2[x]"], 2, True),
        (["tests/docker/test_a.py::test_1"], 3, False),
        (["tests/swe/test_b.py::test_x[local]", "tests/docker/test_a.py::test_1"], 1, True),
        (["tests/swe/test_b.py::test_x[local]", "tests/docker/test_a.py::test_1"], 2, False),
        (["tests/swe/test_b.py::test_xy"], 1, False),
        (["tests/docker/test_a.py::test_1", "tests/core/test_session.py::test_a"], 1, False),
        ([], 1, False),
    ],
)
def test_only_what_is_listed_runs_again(failed: list[str], runs: int, may: bool) -> None:
    assert may_run_again(failed, runs, LISTED) is may


@pytest.mark.parametrize("folder", NEVER)
def test_a_race_of_ours_never_runs_again_although_it_is_listed(folder: str) -> None:
    assert not may_run_again(
        [f"{folder}test_a.py::test_1"], 1, [Excused(folder + "test_a.py", 2, "")]
    )


@pytest.mark.parametrize(
    ("listed", "run", "body", "status"),
    [
        ("test_toy.py 1 why", "1", "assert False", STATUS_AGAIN),
        ("test_toy.py 1 why", "2", "assert False", 1),
        ("test_other.py 1 why", "1", "assert False", 1),
    ],
)
def test_the_exit_status_says_whether_to_run_again(
    tmp_path: Path, listed: str, run: str, body: str, status: int
) -> None:
    (tmp_path / "again.txt").write_text(listed)
    (tmp_path / "test_toy.py").write_text(f"def test_toy():\n    {body}\n")
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n\nfrom tests import again\n"
        "from tests.again import pytest_runtest_logreport, pytest_sessionfinish\n\n"
        'again.LIST = Path(__file__).with_name("again.txt")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SANDBOXKIT_TEST_TURN": run,
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout
