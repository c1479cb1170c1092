"""Checkers and interactors that are programs: how each protocol calls them, and what their ends mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandboxkit import ConfigurationError, ProcessResult
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._checkers import Mark
from sandboxkit.integrations.rewards.programs._languages import Language, language_of

OK, WRONG, PRESENTATION, DIRT, POINTS, UNEXPECTED_END = 0, 1, 2, 4, 7, 8
_PARTLY, _WHOLE = 50, 100
_CRASHES = frozenset(128 + each for each in (4, 6, 7, 8, 9, 11, 13, 15))
"""Statuses that a shell gives for a program that a signal ended."""
_SCORE = re.compile(r"[0-9]+(\.[0-9]*)?")
_POINTS = re.compile(r"^\s*(?:points\s+)?([0-9]+(?:\.[0-9]+)?)")

Protocol = Literal["testlib", "icpc", "printed"]
_ACCEPTED, _REJECTED = 42, 43
_ARGUMENTS = {
    "testlib": ("input.txt", "output.txt", "answer.txt"),
    "icpc": ("input.txt", "answer.txt", "./"),
    "printed": ("input.txt", "answer.txt", "output.txt"),
}


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

    With another `protocol` than "testlib":

    - "icpc": an output validator of ICPC, Kattis or DOMjudge. Its arguments are the names of the input and of the
      expected output, the folder for feedback, and `args`. It reads the output, or the submission's words, from
      stdin. Exit status 42 accepts and 43 rejects; any other is no decision.
    - "printed": a checker of open-r1/codeforces. Its arguments are the names of the input, the expected output and
      the program's output. It prints a score from 0 to 1 and exits with status 0; anything else is no decision.
    """

    source: str = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    language: str | Language = "cpp17"
    most: float = 1.0
    """Number of points for the full score."""
    protocol: Protocol = "testlib"
    args: tuple[str, ...] = ()
    """Further arguments, such as the validator_flags of an ICPC package."""

    def __post_init__(self) -> None:
        language_of(self.language)
        if not isinstance(self.source, str) or not self.source.strip():
            raise ConfigurationError("the checker has no source: give its text")
        for name, text in self.files.items():
            if not isinstance(text, str) or "/" in name or name in ("", ".", ".."):
                raise ConfigurationError(
                    f"the checker's file {name!r} is not a plain name with text, such as 'testlib.h'"
                )
        object.__setattr__(self, "args", tuple(self.args))
        if self.protocol not in _ARGUMENTS:
            raise ConfigurationError(
                f"protocol={self.protocol!r} is none of {', '.join(_ARGUMENTS)}"
            )
        if not self.most > 0:
            raise ConfigurationError(f"most={self.most!r} is not a positive number of points")

    def key(self) -> tuple[str, tuple[tuple[str, str], ...], str]:
        """Return a cache key: two judge programs with equal keys compile to the same program."""
        return self.source, tuple(sorted(self.files.items())), language_of(self.language).name

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of each run: names of files in the program's folder, and `args`."""
        return (*_ARGUMENTS[self.protocol], *self.args)

    def mark(self, result: ProcessResult) -> Mark | None:
        """Return what a run that ended by itself decides; None if it decides nothing."""
        if self.protocol == "testlib":
            message = result.stderr.strip() or result.stdout.strip()
            return mark_of(result.returncode, message, self.most)
        detail = shown(result.stderr.strip()) or f"the {self.protocol} checker refused it"
        if self.protocol == "icpc":
            score = {_ACCEPTED: 1.0, _REJECTED: 0.0}.get(result.returncode)
        else:
            score = printed_score(result)
        return None if score is None else Mark(score, "" if score == 1 else detail)


def printed_score(result: ProcessResult) -> float | None:
    """Return the score from 0 to 1 that a program with status 0 has printed; None if it has printed anything else."""
    found = _SCORE.fullmatch(result.stdout.strip())
    score = float(found[0]) if found and result.returncode == OK else 2.0
    return score if score <= 1 else None


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
