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

import json
import logging
import math
import multiprocessing
import operator
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any  # Any: JSON

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._boundary import shown

_log = logging.getLogger(__name__)

_LONGEST_NUMBER = 10_000
"""Maximum length in bytes of a word that is parsed as a number."""
_TIMES, _SPARE = 4, 1 << 20
_SHOWN = 60
SECONDS = 10
"""CPU time limit of one call in seconds."""
WALL = 120
"""Elapsed time limit of one call in seconds."""
_MEMORY = 1 << 30
"""Memory in bytes that the process may use on top of what the trainer used when it was forked."""
_MOST = 1 << 20
"""Maximum size of a result in bytes of JSON."""


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

    ignore_case: bool = False

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = _cased(answer, self.ignore_case)
        return _mark(observed == expected, "the output differs")


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
        observed, expected = _cased(answer, self.ignore_case)
        return _compared("word", observed.split(), expected.split())


@dataclass(frozen=True, slots=True)
class FloatsChecker:
    """Accepts the same words; a number may differ by max(abs_tol, rel_tol * abs(expected))."""

    rel_tol: float = 1e-6
    abs_tol: float = 1e-6
    ignore_case: bool = False

    def __post_init__(self) -> None:
        for name in ("rel_tol", "abs_tol"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ConfigurationError(f"{name}={value!r} is not a number >= 0, such as 1e-6")

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = (text.split() for text in _cased(answer, self.ignore_case))
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
class LiveCodeBenchChecker:
    """Decides as LiveCodeBench's grader: the same stripped lines, or their words are the same decimal numbers."""

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        observed, expected = (
            [line.strip().encode(errors="surrogateescape") for line in text.strip().split("\n")]
            for text in _texts(answer)
        )
        return _compared("line", observed, expected, _same_decimals)


def _same_decimals(*lines: bytes) -> bool:
    words = [line.decode(errors="surrogateescape").split() for line in lines]
    try:
        got, want = (list(map(Decimal, each)) for each in words)
        return got == want
    except ArithmeticError:
        return False


@dataclass(frozen=True, slots=True)
class AppsChecker:
    """Decides as the grader of APPS, which accepts an output if one of several comparisons does.

    They are: the text without blanks at its ends or those of its lines; the lines as one number each; and the set
    of lines, each as the set of its words, which may be numbers to three decimals. The last one ignores order and
    repetitions.
    """

    def mark(self, answer: Answer) -> Mark:
        """Return the decision on an output."""
        output, expected = _texts(answer)
        lines, wanted = output.splitlines(), [x.strip() for x in expected.split("\n") if x]
        observed = list(filter(None, lines))
        texts = ("\n".join(lines).strip(), "\n".join(map(str.strip, lines)).strip())
        if expected.strip() in texts or wanted == lines or _same_numbers(observed, wanted):
            return Mark(1.0)
        got, want = [each for line in observed if (each := line.split())], map(str.split, wanted)
        if _same_sets(got, list(want)):
            return Mark(1.0)
        return Mark(0.0, LinesChecker().mark(answer).detail or "the output differs")


def _same_numbers(observed: list[str], expected: list[str]) -> bool:
    try:
        pairs = [(_float(a), _float(b)) for a, b in zip(observed, expected, strict=True)]
    except ValueError:
        return False
    return all(
        a == b or (math.isfinite(b) and abs(a - b) <= 1e-8 + 1e-5 * abs(b)) for a, b in pairs
    )


def _same_sets(observed: list[list[str]], expected: list[list[str]]) -> bool:
    for read in (str, lambda word: round(_float(word), 3)):
        with suppress(ValueError, OverflowError):
            got, want = ({frozenset(map(read, x)) for x in each} for each in (observed, expected))
            if got == want:
                return True
    return False


def _float(text: str) -> float:
    """Parse a number as Python does, of limited length."""
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("it is too long")
    return float(text)


def _cased(answer: Answer, ignore_case: bool) -> tuple[bytes, bytes]:
    output, expected = answer.output, answer.expected
    return (output.lower(), expected.lower()) if ignore_case else (output, expected)


def _texts(answer: Answer) -> list[str]:
    return [text.decode(errors="surrogateescape") for text in (answer.output, answer.expected)]


class AuthorError(Exception):
    """Raised if the author's function raised an error or exceeded a limit; the message says which."""


class AuthorFunction:
    """Calls `function` with texts in a process of its own; the result is JSON. Thread-safe.

    The texts are hostile: they may make the function raise, loop, or use up memory. None of that reaches the trainer.
    The process is forked at the first call, and again after a call that ended it. It has a copy of the trainer's
    variables: what the function changes does not reach the trainer.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._owner = 0
        """The process that has forked the child; 0: there is none."""

    def __call__(self, *texts: str) -> Any:
        """Return the function's result. Raises AuthorError."""
        with self._lock:
            if self._owner != os.getpid():
                self._fork()
            try:
                kind, value = self._ask(texts)
            except BaseException:
                self._end()
                raise
        if kind != "returned":
            raise AuthorError(str(value))
        return value

    def _fork(self) -> None:
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(self._function, other), daemon=True)
        with warnings.catch_warnings():  # other threads may hold locks: a call has a time limit
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()
        self._owner = os.getpid()

    def _ask(self, texts: Sequence[str]) -> Any:
        """Return the child's response to one call. Raises AuthorError."""
        try:
            self._connection.send_bytes(json.dumps(texts).encode())
            if not self._connection.poll(WALL):
                raise AuthorError(f"it did not return within {WALL} s")
            return json.loads(self._connection.recv_bytes(2 * _MOST))
        except (EOFError, OSError) as error:
            self._process.join(1)  # its end of the pipe is closed just before
            raise AuthorError(_ended(self._process.exitcode)) from error

    def _end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._owner = 0


@lru_cache(maxsize=64)
def author_function(function: Callable[..., Any]) -> AuthorFunction:
    """Return the process of a function, the same one for all tasks that name it."""
    return AuthorFunction(function)


def _serve(function: Callable[..., Any], connection: Connection) -> None:
    """Answer calls until the connection ends. It holds none of the trainer's other descriptors."""
    descriptor = connection.fileno()
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    if sys.platform == "linux":  # elsewhere the kernel has no such limit
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, used + _MEMORY)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        try:
            texts = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + SECONDS)
        signal.alarm(2 * WALL)  # for the case that the trainer is gone
        connection.send_bytes(json.dumps(_called(function, texts)).encode())
        signal.alarm(0)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (soft, hard))


def _called(function: Callable[..., Any], texts: Sequence[str]) -> tuple[str, Any]:
    try:
        value = function(*texts)
        if len(json.dumps(value)) > _MOST:
            raise ValueError(f"it returned more than {_MOST} bytes")
    except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, SystemExit as well
        return "raised", f"{type(error).__name__}: {str(error)[:500]}"
    return "returned", value


def _ended(status: int | None) -> str:
    if status == -signal.SIGXCPU:
        return f"it used more than {SECONDS} s of CPU time"
    return f"its process ended with status {status}"


@dataclass(frozen=True, slots=True)
class FunctionChecker:
    """Calls your `function(stdin, output, expected)` on the host, with each argument as text.

    The function returns True or False, or a score from 0 to 1. It runs in a forked process with limits of time
    and memory, so what it changes is lost. Where it decides on the expected output, its errors, timeouts and
    scores such as NaN on another output are that output's zero, with a warning.
    """

    function: Callable[[str, str, str], bool | float]

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
        score = author_function(self.function)(*(text.decode(errors="replace") for text in texts))
        if not isinstance(score, bool | int | float) or not 0 <= score <= 1:
            raise AuthorError(f"it returned {score!r}: return True, False, or a number from 0 to 1")
        return float(score)

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))


HostChecker = (
    ExactChecker
    | LinesChecker
    | TokensChecker
    | FloatsChecker
    | UnorderedLinesChecker
    | LiveCodeBenchChecker
    | AppsChecker
    | FunctionChecker
)
"""A checker that runs on the host."""
OURS = (
    *(ExactChecker, LinesChecker, TokensChecker, FloatsChecker, UnorderedLinesChecker),
    *(LiveCodeBenchChecker, AppsChecker),
)
"""The checkers that read no more of an output than `most_output`, in time in proportion to it."""
