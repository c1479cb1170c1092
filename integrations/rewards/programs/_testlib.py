"""Checkers and interactors written with testlib: what their exit codes say."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards.programs._checkers import Mark
from sandboxkit.integrations.rewards.programs._languages import Language, language_of

OK, WRONG, PRESENTATION, FAIL, DIRT, POINTS, UNEXPECTED_END = 0, 1, 2, 3, 4, 7, 8
_PARTLY, _WHOLE = 50, 100
_POINTS = re.compile(r"^\s*(?:points\s+)?([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class JudgeProgram:
    """A checker or interactor as a program, such as one that includes testlib.h.

    It is compiled and run in a judge's sandbox, which never holds a submission. `files` are further
    files beside the source, such as {"testlib.h": "..."}: bring your own copy. A checker is called with
    the names of three files: the input, the program's output and the expected output. Exit status 0
    accepts, 1, 2, 4 and 8 refuse, 3 says that the checker or its data is broken, 7 gives points (from 0
    to `most`, in the first line of its message), and 50 to 150 give 0 to 100 %.

    An interactor is called with an input file, an output file and the expected output, and talks to the
    submission through its stdin and stdout.
    """

    source: str = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    language: str | Language = "cpp17"
    most: float = 1.0
    """The points that are a full score."""

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
        """Return what the compiled program depends on."""
        return self.source, tuple(sorted(self.files.items())), language_of(self.language).name


def mark_of(status: int, message: str, most: float) -> Mark | None:
    """Return what an exit status of testlib says of the output; None if it blames the jury or nobody."""
    detail = shown(message.strip())
    if status == OK:
        return Mark(1.0, detail)
    if status in (WRONG, PRESENTATION, DIRT, UNEXPECTED_END):
        return Mark(0.0, detail or f"the checker's status is {status}")
    if status == POINTS:
        found = _POINTS.match(message)
        return None if found is None else Mark(min(float(found[1]) / most, 1.0), detail)
    if _PARTLY <= status <= _PARTLY + _WHOLE:
        return Mark((status - _PARTLY) / _WHOLE, detail)
    return None
