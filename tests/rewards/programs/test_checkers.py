"""Checkers accept what they should, whatever an output holds, and in linear time."""

import time

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards.programs import (
    Answer,
    ExactChecker,
    FloatsChecker,
    FunctionChecker,
    HostChecker,
    LinesChecker,
    TokensChecker,
    UnorderedLinesChecker,
)
from sandboxkit.integrations.rewards.programs._testlib import mark_of

ACCEPTED: list[tuple[HostChecker, bytes, bytes]] = [
    (ExactChecker(), b"1\n", b"1\n"),
    (LinesChecker(), b"1", b"1\n"),
    (LinesChecker(), b"1  \n2\t\n\n\n", b"1\n2\n"),
    (LinesChecker(), b"1\r\n2\r\n", b"1\n2\n"),
    (LinesChecker(), b"", b"\n"),
    (LinesChecker(), b"\xff\xfe", b"\xff\xfe\n"),
    (TokensChecker(), b"1   2\n\n3", b"1 2 3\n"),
    (TokensChecker(ignore_case=True), b"Yes", b"YES\n"),
    (FloatsChecker(1e-6, 1e-6), b"0.5000001 x", b"0.5 x\n"),
    (FloatsChecker(1e-6, 0), b"1000000.5", b"1000000.1"),
    (FloatsChecker(0, 1e-3), b"0.0009 -0", b"0 0"),
    (FloatsChecker(), b"nan", b"nan"),
    (FloatsChecker(), b"1e3", b"1000"),
    (UnorderedLinesChecker(), b"b\na\n", b"a\nb\n"),
    (UnorderedLinesChecker(), b"b \n\na\na", b"a\nb\na\n"),
    (FunctionChecker(lambda stdin, output, expected: output.strip() == expected), b"1\n", b"1"),
]
REFUSED: list[tuple[HostChecker, bytes, bytes]] = [
    (ExactChecker(), b"1", b"1\n"),
    (LinesChecker(), b"1 2", b"1  2\n"),
    (LinesChecker(), b"\n1", b"1\n"),
    (LinesChecker(), b"", b"1\n"),
    (LinesChecker(), b"1\n2", b"1\n"),
    (TokensChecker(), b"12", b"1 2"),
    (TokensChecker(), b"Yes", b"YES"),
    (FloatsChecker(), b"nan", b"1"),
    (FloatsChecker(), b"inf", b"1"),
    (FloatsChecker(1e-6, 1e-6), b"1e400", b"1"),
    (FloatsChecker(1, 1), b"1_0", b"10"),
    (FloatsChecker(1, 1), b"1 1", b"1"),
    (FloatsChecker(), b"1" * 5000, b"2" * 5000),
    (FloatsChecker(), b"x", b"0"),
    (UnorderedLinesChecker(), b"a\na\n", b"a\nb\n"),
    (UnorderedLinesChecker(), b"a\n", b"a\na\n"),
    (UnorderedLinesChecker(), b"a\nb\nc\n", b"a\nb\n"),
    (FunctionChecker(lambda stdin, output, expected: int(output) == int(expected)), b"one", b"1"),
]


@pytest.mark.parametrize(("checker", "output", "expected"), ACCEPTED)
def test_accepts(checker: HostChecker, output: bytes, expected: bytes) -> None:
    assert checker.mark(Answer(b"", output, expected)).score == 1


@pytest.mark.parametrize(("checker", "output", "expected"), REFUSED)
def test_refuses(checker: HostChecker, output: bytes, expected: bytes) -> None:
    mark = checker.mark(Answer(b"", output, expected))
    assert mark.score == 0
    assert mark.detail


def test_a_refusal_does_not_show_the_expected_output() -> None:
    for checker in (
        ExactChecker(),
        LinesChecker(),
        TokensChecker(),
        FloatsChecker(),
        UnorderedLinesChecker(),
    ):
        mark = checker.mark(Answer(b"", b"wrong wrong\n", b"secret secret\n"))
        assert mark.score == 0
        assert "secret" not in mark.detail


def test_a_function_may_give_a_score() -> None:
    assert FunctionChecker(lambda *_: 0.25).mark(Answer(b"", b"", b"")).score == 0.25


@pytest.mark.parametrize("returned", [None, 2, -1, "yes", float("nan")])
def test_a_function_with_a_useless_answer_is_the_tasks_mistake(returned: object) -> None:
    with pytest.raises(ConfigurationError, match="return True, False"):
        FunctionChecker(lambda *_: returned).mark(Answer(b"", b"", b""))  # type: ignore[arg-type]


def test_a_function_that_fails_for_the_expected_output_is_the_tasks_mistake() -> None:
    def broken(stdin: str, output: str, expected: str) -> bool:
        raise KeyError("gone")

    with pytest.raises(ConfigurationError, match="raises KeyError for the expected output too"):
        FunctionChecker(broken).mark(Answer(b"", b"1", b"1"))


@pytest.mark.parametrize(
    "checker",
    [ExactChecker(), LinesChecker(), TokensChecker(), FloatsChecker(), UnorderedLinesChecker()],
)
@pytest.mark.parametrize("unit", [b"1 ", b"1\n", b"\n", b"9", b" ", b"\r"])
def test_an_output_of_megabytes_is_checked_in_seconds(checker: HostChecker, unit: bytes) -> None:
    begun = time.process_time()
    output = unit * (4_000_000 // len(unit))
    checker.mark(Answer(b"", output, output[:-1] + b"x"))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    ("status", "message", "score"),
    [
        (0, "ok", 1.0),
        (1, "wrong answer", 0.0),
        (2, "wrong output format", 0.0),
        (3, "FAIL", None),
        (4, "dirt", 0.0),
        (7, "points 0.5 half", 0.5),
        (7, "0.25", 0.25),
        (7, "nothing", None),
        (7, "points 7", 1.0),
        (8, "unexpected end of file", 0.0),
        (50, "", 0.0),
        (75, "", 0.25),
        (150, "", 1.0),
        (5, "", None),
        (200, "", None),
    ],
)
def test_exit_codes_of_testlib(status: int, message: str, score: float | None) -> None:
    mark = mark_of(status, message, 1.0)
    assert (mark and mark.score) == score
