"""Grading of whole programs: languages, checkers, interactors, and `Program`."""

from sandboxkit.integrations.rewards.programs._checkers import (
    Answer,
    Exact,
    Floats,
    Function,
    HostChecker,
    Lines,
    Mark,
    Tokens,
    UnorderedLines,
)
from sandboxkit.integrations.rewards.programs._languages import LANGUAGES, Language, language_of
from sandboxkit.integrations.rewards.programs._program import Program
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

__all__ = [
    "LANGUAGES",
    "Answer",
    "Exact",
    "Floats",
    "Function",
    "HostChecker",
    "JudgeProgram",
    "Language",
    "Lines",
    "Mark",
    "Program",
    "Tokens",
    "UnorderedLines",
    "language_of",
]
