"""The parts of pytest that a conformance check uses, for `sandboxkit doctor --live` where pytest is missing."""

import re
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any, NoReturn

FixtureRequest = MonkeyPatch = object


class Failed(AssertionError):
    """A check found something wrong."""


class Skipped(Exception):
    """A check cannot be made here."""


def fail(reason: str) -> NoReturn:
    """End a check: it has found something wrong."""
    raise Failed(reason)


def skip(reason: str) -> NoReturn:
    """End a check: it cannot be made here."""
    raise Skipped(reason)


fail.Exception = Failed  # type: ignore[attr-defined]  # as pytest has it
skip.Exception = Skipped  # type: ignore[attr-defined]


def fixture(function: Any = None, **options: Any) -> Any:  # Any: with arguments it is a decorator
    """Nobody calls fixtures here."""
    return function if function is not None else _unchanged


def _unchanged(function: Any) -> Any:
    return function


def _parametrize(*arguments: object, **options: object) -> Callable[[Any], Any]:
    return _unchanged


mark = SimpleNamespace(parametrize=_parametrize)


class raises:
    """Require an exception of these types whose text matches."""

    def __init__(self, expected: Any, *, match: str = "") -> None:
        self._expected, self._match = expected, match
        self.value: BaseException

    def __enter__(self) -> "raises":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            raise Failed(f"did not raise {self._expected}")
        if not isinstance(error, self._expected):
            return False
        if not re.search(self._match, str(error)):
            raise Failed(f"{error} does not match {self._match}") from error
        self.value = error
        return True
