"""Checkers accept what they should, whatever an output holds, and in linear time."""

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.integrations.rewards import _checkers, programs
from sandboxkit.integrations.rewards._checkers import HostChecker, TaskError
from sandboxkit.integrations.rewards.programs import Answer, FunctionChecker
from sandboxkit.integrations.rewards.programs._task import NAMED
from sandboxkit.integrations.rewards.programs._testlib import mark_of
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA
from tests.rewards.programs.golden import GOLDEN

GIVEN = read(DATA / "checkers.toml")
"""Which output each checker accepts or refuses beside which expected one, as Latin-1."""
OWN = [make() for make in NAMED.values()]


@pytest.mark.parametrize("kind", ["accepted", "refused"])
def test_checkers_accept_and_refuse(kind: str) -> None:
    for name, options, output, expected in GIVEN[kind]:
        checker = getattr(programs, name)(**options)
        mark = checker.mark(Answer(b"", output.encode("latin-1"), expected.encode("latin-1")))
        assert mark.score == (kind == "accepted"), (name, options, output)
        assert mark.score or mark.detail


@pytest.mark.parametrize("name", ["live_code_bench", "apps", "code_contests"])
def test_a_data_set_s_checker_decides_as_its_published_grader(name: str) -> None:
    for output, expected, accepted in GOLDEN[name]["rows"]:
        mark = NAMED[name]().mark(Answer(b"", output.encode(), expected.encode()))
        assert mark.score == accepted, (output, expected)
        assert mark.score or mark.detail


@pytest.mark.parametrize(("output", "score"), [(b"1\n", 1), (b"2", 0), (b"one", 0)])
def test_a_function_decides_and_its_errors_refuse(output: bytes, score: float) -> None:
    checker = FunctionChecker(lambda stdin, output, expected: int(output) == int(expected))
    mark = checker.mark(Answer(b"", output, b"1"))
    assert mark.score == score
    assert score or mark.detail


def test_a_refusal_does_not_show_the_expected_output() -> None:
    for checker in OWN:
        mark = checker.mark(Answer(b"", b"wrong wrong\n", b"secret secret\n"))
        assert mark.score == 0
        assert "secret" not in mark.detail


def test_a_function_may_give_a_score() -> None:
    assert FunctionChecker(lambda *_: 0.25).mark(Answer(b"", b"", b"")).score == 0.25


@pytest.mark.parametrize("returned", [None, 2, -1, "yes", float("nan")])
def test_a_function_that_cannot_decide_on_the_expected_output_is_the_tasks_mistake(
    returned: object,
) -> None:
    with pytest.raises(TaskError, match="fails for the expected output too: it returned"):
        FunctionChecker(lambda *_: returned).mark(Answer(b"", b"1", b"2"))  # type: ignore[arg-type]


def hostile(_: str, output: str, expected: str) -> float:
    """A checker as authors write it, which an output can break in as many ways."""
    ways: dict[str, Callable[[], Any]] = {
        "raise": lambda: int("x"),
        "exit": lambda: sys.exit(0),
        "die": lambda: os._exit(0),
        "abort": os.abort,
        "memory": lambda: len(b"x" * (8 << 30)),
        "nan": lambda: float("nan"),
        "beyond": lambda: 2,
        "text": lambda: "yes",
        "object": object,
        "large": lambda: "x" * (2 << 20),
        "loop": lambda: next(n for n in itertools.count() if n < 0),
    }
    return ways.get(output, lambda: output == expected)()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "output",
    ["raise", "exit", "die", "abort", "memory", "nan", "beyond", "text", "object", "large", "loop"],
)
def test_what_breaks_a_function_is_wrong_and_the_next_output_is_checked(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checkers, "SECONDS", 1)
    checker = FunctionChecker(hostile)
    mark = checker.mark(Answer(b"", output.encode(), b"1"))
    assert (mark.score, "cannot decide" in mark.detail) == (0, True)
    assert checker.mark(Answer(b"", b"1", b"1")).score == 1


def test_a_function_runs_in_one_process_that_holds_no_file_of_the_trainer(tmp_path: Path) -> None:
    with open(tmp_path / "open", "w"):
        checker = FunctionChecker(lambda *_: [os.getpid(), len(os.listdir("/proc/self/fd"))])  # type: ignore[arg-type]
        with pytest.raises(TaskError) as first:
            checker.mark(Answer(b"", b"", b""))
        with pytest.raises(TaskError) as second:
            checker.mark(Answer(b"", b"", b""))
    assert str(first.value) == str(second.value)
    assert str(os.getpid()) not in str(first.value)
    assert ", 5]" in str(first.value)  # the usual three, that of the call, and that of this look


@pytest.mark.parametrize("checker", OWN)
@pytest.mark.parametrize("unit", [b"1 ", b"1\n", b"\n", b"9", b" ", b"\r"])
def test_an_output_of_megabytes_is_checked_in_seconds(checker: HostChecker, unit: bytes) -> None:
    begun = time.process_time()
    output = unit * (4_000_000 // len(unit))
    checker.mark(Answer(b"", output, output[:-1] + b"x"))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("row", GIVEN["exit_codes"], ids=str)
def test_exit_codes_of_testlib(row: list[Any]) -> None:
    """Rows without a score are failures of the checker itself."""
    status, message, *score = row
    mark = mark_of(status, message, 1.0)
    assert [mark.score] == score if mark else score == []
