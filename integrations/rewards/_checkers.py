"""Comparisons of a program's output with the expected output, on the host.

Whitespace is what C's `isspace` accepts, and a number is what Codeforces' and DOMjudge's checkers read:

| output | expected | lines, tokens | floats |
|---|---|---|---|
| blanks or CR at a line's end, empty lines at the end | without | right | right |
| a no-break space, NEL or file separator at a line's end | without | wrong | wrong |
| `1.0` | `1` | wrong | right |
| `1_0`, digits of other scripts | `10` | wrong | wrong |
| `inf`, `nan` | the same word | right | right |
| `inf`, `nan` | a number | wrong | wrong |
| a decimal of 500 digits | the same, rounded | wrong | right |
"""

import logging
import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._author import AuthorError, AuthorFunction, author_function
from sandboxkit.integrations.rewards._boundary import shown

_log = logging.getLogger(__name__)

_LONGEST_NUMBER = 10_000
"""Maximum length in bytes of a word that is parsed as a number."""
_TIMES, _SPARE = 4, 1 << 20
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """The input and output of one run of a program, and the expected output."""

    stdin: bytes
    output: bytes
    expected: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """A checker's decision on one output."""

    score: float
    """From 0 (wrong) to 1 (right)."""
    detail: str = ""


class TaskError(Exception):
    """Raised if a task's own code fails for the reference's output too, so that it decides on nothing."""


class HostChecker(Protocol):
    """A checker that runs on the host. Its time must be linear in the size of the output."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        ...


def most_output(expected: bytes) -> int:
    """Return the maximum size in bytes of an output that is read and compared with `expected`."""
    return _TIMES * len(expected) + _SPARE


def _mark(same: bool, detail: str) -> Mark:
    return Mark(1.0) if same else Mark(0.0, detail)


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.replace(b"\r\n", b"\n").split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _compared(
    kind: str,
    observed: list[bytes],
    expected: list[bytes],
    same: Callable[[bytes, bytes], bool] = operator.eq,
) -> Mark:
    """Compare two lists; `detail` has the first difference, without the expected value.

    The model must not learn that value.
    """
    for number, (got, want) in enumerate(zip(observed, expected, strict=False), 1):
        if got != want and not same(got, want):
            text = shown(got[:_SHOWN].decode(errors="replace"))
            return Mark(0.0, f"{kind} {number} is wrong: {text}")
    return _mark(
        len(observed) == len(expected), f"{len(observed)} {kind}s instead of {len(expected)}"
    )


@dataclass(frozen=True, slots=True)
class ExactChecker:
    """Accepts only output that equals the expected bytes."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        return _mark(answer.output == answer.expected, "the output differs")


@dataclass(frozen=True, slots=True)
class LinesChecker:
    """Accepts the same lines; ignores whitespace at line ends and empty lines at the end."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        return _compared("line", _lines(answer.output), _lines(answer.expected))


@dataclass(frozen=True, slots=True)
class TokensChecker:
    """Accepts the same words, separated by any whitespace."""

    ignore_case: bool = False

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        texts = (answer.output, answer.expected)
        observed, expected = (
            (text.lower() if self.ignore_case else text).split() for text in texts
        )
        return _compared("word", observed, expected)


@dataclass(frozen=True, slots=True)
class FloatsChecker:
    """Accepts the same words; a number may differ by max(abs_tol, rel_tol * abs(expected))."""

    rel_tol: float = 1e-6
    abs_tol: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("rel_tol", "abs_tol"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ConfigurationError(f"{name}={value!r} is not a number >= 0, such as 1e-6")

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = answer.output.split(), answer.expected.split()
        if len(observed) != len(expected):
            return Mark(0.0, f"{len(observed)} words instead of {len(expected)}")
        return _compared("word", observed, expected, self._close)

    def _close(self, got: bytes, want: bytes) -> bool:
        observed, expected = _number(got), _number(want)
        if observed is None or expected is None:
            return False
        return abs(observed - expected) <= max(self.abs_tol, self.rel_tol * abs(expected))


def _number(word: bytes) -> float | None:
    """Parse a finite number; return None for any other word, such as 1_000, nan or inf."""
    if len(word) > _LONGEST_NUMBER or b"_" in word:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class UnorderedLinesChecker:
    """Accepts the same lines in any order; ignores whitespace at line ends and empty lines at the end."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = (
            Counter(filter(None, _lines(text))) for text in (answer.output, answer.expected)
        )
        extra = next(iter(observed - expected), None)
        if extra is not None:
            return Mark(0.0, f"a line too many: {shown(extra[:_SHOWN].decode(errors='replace'))}")
        return _mark(observed == expected, "a line is missing")


@dataclass(frozen=True, slots=True)
class FunctionChecker:
    """Calls your `function(stdin, output, expected)` on the host, with each argument as text.

    The function returns True or False, or a score from 0 to 1. It runs in a forked process with limits of time
    and memory, so what it changes is lost. Where it decides on the expected output, its errors, timeouts and
    scores such as NaN on another output are that output's zero, with a warning.
    """

    function: Callable[[str, str, str], bool | float]
    _call: AuthorFunction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_call", author_function(self.function))

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output. Raises TaskError if there is none on the expected output either."""
        try:
            score = self._score(answer)
        except AuthorError as error:
            try:
                self._score(Answer(answer.stdin, answer.expected, answer.expected))
            except AuthorError as own:
                raise TaskError(
                    f"the checker {self._name} fails for the expected output too: {shown(own)}"
                ) from own
            detail = f"the checker {self._name} cannot decide: {shown(error)}"
            _log.warning("%s; the output counts as wrong", detail)
            return Mark(0.0, detail)
        return Mark(score, "" if score == 1 else "the checker refused the output")

    def _score(self, answer: Answer) -> float:
        texts = (answer.stdin, answer.output, answer.expected)
        score = self._call(*(text.decode(errors="replace") for text in texts))
        if not isinstance(score, bool | int | float) or not 0 <= score <= 1:
            raise AuthorError(f"it returned {score!r}: return True, False, or a number from 0 to 1")
        return float(score)

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))


OURS = (ExactChecker, LinesChecker, TokensChecker, FloatsChecker, UnorderedLinesChecker)
"""The checkers that read no more of an output than `most_output`, in time in proportion to it."""
