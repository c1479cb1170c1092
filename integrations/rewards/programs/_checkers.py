"""Checkers that run on this side: they compare a program's output with the expected one."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._boundary import shown

_LONGEST_NUMBER = 400
"""Longest word, in bytes, that is read as a number: the conversion of a longer one takes too long."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """The input and output of a program, and the output that its task expects."""

    stdin: bytes
    output: bytes
    expected: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """A checker's decision on one output."""

    score: float
    """From 0 to 1; 1 is right."""
    detail: str = ""


class HostChecker(Protocol):
    """Compares one output with the expected one, on this side and in linear time."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        ...


def _mark(same: bool, detail: str) -> Mark:
    return Mark(1.0) if same else Mark(0.0, detail)


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in text.replace(b"\r\n", b"\n").split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _difference(kind: str, observed: list[bytes], expected: list[bytes]) -> str:
    """Name the first difference by its number; the expected value is not for the model's log."""
    for number, (got, want) in enumerate(zip(observed, expected, strict=False), 1):
        if got != want:
            return f"{kind} {number} is wrong: {shown(got[:_SHOWN].decode(errors='replace'))}"
    return f"{len(observed)} {kind}s instead of {len(expected)}"


@dataclass(frozen=True, slots=True)
class ExactChecker:
    """Accepts the same bytes alone."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        return _mark(answer.output == answer.expected, "the output differs")


@dataclass(frozen=True, slots=True)
class LinesChecker:
    """Accepts the same lines; blanks at the end of a line and empty lines at the end do not count."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = _lines(answer.output), _lines(answer.expected)
        return _mark(observed == expected, _difference("line", observed, expected))


@dataclass(frozen=True, slots=True)
class TokensChecker:
    """Accepts the same words, however they are separated."""

    ignore_case: bool = False

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        texts = (answer.output, answer.expected)
        observed, expected = (
            (text.lower() if self.ignore_case else text).split() for text in texts
        )
        return _mark(observed == expected, _difference("word", observed, expected))


@dataclass(frozen=True, slots=True)
class FloatsChecker:
    """Accepts the same words; numbers may differ by `abs_tol`, or by `rel_tol` times the expected one."""

    rel_tol: float = 1e-6
    abs_tol: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("rel_tol", "abs_tol"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ConfigurationError(f"{name}={value!r} is not a number from 0, such as 1e-6")

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = answer.output.split(), answer.expected.split()
        if len(observed) == len(expected):
            wrong = (
                number
                for number, (got, want) in enumerate(zip(observed, expected, strict=True), 1)
                if got != want and not self._close(got, want)
            )
            first = next(wrong, None)
            if first is None:
                return Mark(1.0)
            word = shown(observed[first - 1][:_SHOWN].decode(errors="replace"))
            return Mark(0.0, f"word {first} is wrong: {word}")
        return Mark(0.0, f"{len(observed)} words instead of {len(expected)}")

    def _close(self, got: bytes, want: bytes) -> bool:
        observed, expected = _number(got), _number(want)
        if observed is None or expected is None:
            return False
        return abs(observed - expected) <= max(self.abs_tol, self.rel_tol * abs(expected))


def _number(word: bytes) -> float | None:
    """Return a finite number as judges read it: Python's 1_000, nan and infinity are none."""
    if len(word) > _LONGEST_NUMBER or b"_" in word:
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class UnorderedLinesChecker:
    """Accepts the same lines in any order; blanks at the end of a line and empty lines do not count."""

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
    """A function of yours, called on this side with (stdin, output, expected), each as text.

    It returns True or False, or a score from 0 to 1. It must not run or import the output. An error
    that it raises fails the output if the function accepts the expected output; otherwise the task is
    wrong and ConfigurationError is raised.
    """

    function: Callable[[str, str, str], bool | float]

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output. Raises ConfigurationError for a broken function."""
        try:
            score = self._score(answer)
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises
            self._probe(answer, error)
            return Mark(0.0, f"the checker raised {type(error).__name__}: {shown(error)}")
        return Mark(score, "" if score == 1 else "the checker refused the output")

    def _score(self, answer: Answer) -> float:
        texts = (answer.stdin, answer.output, answer.expected)
        score = self.function(*(text.decode(errors="replace") for text in texts))
        if not isinstance(score, bool | int | float) or not 0 <= score <= 1:
            raise ConfigurationError(
                f"the checker {self._name} returned {shown(repr(score))}: return True, False, or a "
                "number from 0 to 1"
            )
        return float(score)

    def _probe(self, answer: Answer, error: Exception) -> None:
        """Raise ConfigurationError unless the function works on the expected output."""
        if isinstance(error, ConfigurationError):
            raise error
        try:
            self._score(Answer(answer.stdin, answer.expected, answer.expected))
        except ConfigurationError:
            raise
        except Exception as own:
            raise ConfigurationError(
                f"the checker {self._name} raises {type(own).__name__} for the expected output too: "
                f"{shown(own)}"
            ) from own

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))
