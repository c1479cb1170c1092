"""A run of the groups says what ran; only a few failed tests run again, alone, and are printed as flaky."""

import ast
from pathlib import Path

import pytest

from tests import run
from tests.data_here import beside
from tests.outcomes import Outcome
from tests.packaging.test_surface import ROOT, tracked
from tests.run import GROUPS, Group

GIVEN = beside(__file__, "run.toml")
FLAKY, FAILS, PASSES = GIVEN["flaky"], GIVEN["fails"], GIVEN["passes"]


class Toy:
    """A project with tests of its own, run as this one's."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        (root / ".venv").symlink_to(ROOT / ".venv")
        (root / "conftest.py").write_text('pytest_plugins = ["tests.outcomes"]\n')
        (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone: x\n    nightly: x\n")
        patch.setattr(run, "ROOT", root)
        patch.setattr(run, "FILE", root / "build" / "outcomes.jsonl")
        patch.setattr(run, "RUN_ONCE", ("toy/core/",))
        patch.setattr(run, "GROUPS", {"test": Group("a toy", ("toy",), processes=0)})
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PYTEST_ADDOPTS", "--import-mode=importlib")

    def run(self, *arguments: str, **files: str) -> int:
        """Write the files `toy/…/test_NAME.py`, with `__` for a folder, and run the group."""
        for name, text in files.items():
            *folders, last = name.split("__")
            file = self.root.joinpath("toy", *folders, f"test_{last}.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return run.main(arguments)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(tmp_path, monkeypatch)


def test_a_test_that_passes_alone_is_flaky(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy.run(flaky=FLAKY, passes=PASSES) == 0
    shown = capsys.readouterr().out
    assert "flaky: failed, and passed alone\n  toy/test_flaky.py::test_flaky\n" in shown
    assert "AssertionError: the first time" in shown
    assert shown.split("\n\n")[1].splitlines()[1].split()[:4] == ["test", "1", "1", "0"]


def test_a_race_of_the_core_fails_the_run(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy.run(core__flaky=FLAKY) == 1
    shown = capsys.readouterr().out
    assert "flaky: " in shown
    assert "failed:\n  toy/core/test_flaky.py::test_flaky\n" in shown


def test_more_than_three_failed_tests_do_not_run_again(toy: Toy) -> None:
    assert toy.run(a=FLAKY, b=FLAKY, c=FLAKY, d=FLAKY) == 1
    assert {(toy.root / f"toy/test_{name}.seen").read_text() for name in "abcd"} == {"1"}


@pytest.mark.parametrize(
    "text",
    [FAILS, GIVEN["leaves"], "import no_such_module\n"],
    ids=["fails", "leaves", "no-import"],
)
def test_a_failure_that_stays_fails_the_run(toy: Toy, text: str) -> None:
    assert toy.run(passes=PASSES, other=text) == 1


def test_what_is_marked_alone_runs_afterwards_but_nothing_is_an_error(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = "import pytest\npytestmark = pytest.mark.{}\n" + PASSES
    assert toy.run(a=marked.format("alone"), b=PASSES) == 0
    assert capsys.readouterr().out.split("\n\n")[1].splitlines()[1].split()[:2] == ["test", "2"]
    assert toy.run(a=marked.format("alone"), b=marked.format("nightly")) == 0
    assert toy.run(a=marked.format("nightly")) == 1


def test_a_required_component_is_there(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy.run(skips=GIVEN["skips"], passes=PASSES) == 0
    assert "     1  daemon   start it\n" in capsys.readouterr().out
    assert toy.run("--required") == 1
    assert toy.run("--required", "daemon") == 0


def test_what_another_group_ran_is_no_skip(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = [
        run.Ran("a", outcomes={"t::x": Outcome("t::x", "skipped", "no y: get it")}),
        run.Ran("b", outcomes={"t::x": Outcome("t::x", "passed")}),
    ]
    assert run.missing(ran) == []
    assert run.missing(ran[:1]) == [ran[0].outcomes["t::x"]]


def test_the_groups_have_every_test_file() -> None:
    files = [path.relative_to(ROOT) for path in tracked("tests/*test_*.py")]
    assert len(files) > 200
    for group in GROUPS.values():
        for path in (*group.paths, *group.left_out):
            assert (ROOT / path).exists(), path
    for file in files:
        assert any(
            any(map(file.is_relative_to, group.paths))
            and not any(map(file.is_relative_to, group.left_out))
            for group in GROUPS.values()
        ), file


def test_few_tests_are_left_to_the_night() -> None:
    tests = [
        [ast.unparse(each) for each in node.decorator_list]
        for path in tracked("tests/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    nightly = [marks for marks in tests if "pytest.mark.nightly" in marks]
    assert 0 < len(nightly) <= 0.05 * len(tests)
