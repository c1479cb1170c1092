"""Checkers and interactors that are programs, and the meaning of their exit statuses, as in testlib."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._checkers import Mark
from sandboxkit.integrations.rewards.programs._languages import Language, language_of

OK, WRONG, PRESENTATION, DIRT, POINTS, UNEXPECTED_END = 0, 1, 2, 4, 7, 8
_PARTLY, _WHOLE = 50, 100
_CRASHES = frozenset(128 + each for each in (4, 6, 7, 8, 9, 11, 13, 15))
"""Statuses that a shell gives for a program that a signal ended."""
_POINTS = re.compile(r"^\s*(?:points\s+)?([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class JudgeProgram:
    """A checker or interactor as a program, such as one that includes testlib.h.

    It is compiled and run in sandboxes that never hold a submission. `files` are further files for the
    source's folder, such as {"testlib.h": "..."}; no testlib.h is included. A checker's arguments are
    the names of three files: the input, the program's output and the expected output. Exit status 0
    accepts, 1, 2, 4 and 8 reject, 7 gives points (the number at the start of its message, of at most `most`), and
    50 to 150 give 0 to 100 %. The statuses that a shell gives for a crash, such as 134, do so only with testlib's
    message "partially correct". With any other status, 3 among them, the checker has not decided: it is run on the
    expected output too. If it decides there, the output is wrong; otherwise the task is at fault.

    An interactor's arguments are the names of an input file, an output file and the expected output.
    It talks to the submission through its stdin and stdout.
    """

    source: str = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    language: str | Language = "cpp17"
    most: float = 1.0
    """Number of points for the full score."""

    def __post_init__(self) -> None:
        language_of(self.language)
        if not isinstance(self.source, str) or not self.source.strip():
            raise ConfigurationError("the checker has no source: give its text")
        for name, text in self.files.items():
            if not isinstance(text, str) or "/" in name or name in ("", ".", ".."):
                raise ConfigurationError(
                    f"the checker's file {name!r} is not a plain name with text, such as 'testlib.h'"
                )
        if not self.most > 0:
            raise ConfigurationError(f"most={self.most!r} is not a positive number of points")

    def key(self) -> tuple[str, tuple[tuple[str, str], ...], str]:
        """Return a cache key: two judge programs with equal keys compile to the same program."""
        return self.source, tuple(sorted(self.files.items())), language_of(self.language).name


def mark_of(status: int, message: str, most: float) -> Mark | None:
    """Convert a testlib exit status to a mark; None if it is no decision on the output.

    `message` is the program's stderr or stdout, and `most` the number of points for the full score.
    """
    detail = shown(message.strip())
    if status == OK:
        return Mark(1.0, detail)
    if status in (WRONG, PRESENTATION, DIRT, UNEXPECTED_END):
        return Mark(0.0, detail or f"the checker's status is {status}")
    if status == POINTS:
        found = _POINTS.match(message)
        return None if found is None else Mark(min(float(found[1]) / most, 1.0), detail)
    crashed = status in _CRASHES and not message.lstrip().startswith("partially correct")
    if _PARTLY <= status <= _PARTLY + _WHOLE and not crashed:
        return Mark((status - _PARTLY) / _WHOLE, detail)
    return None
