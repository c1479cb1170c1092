"""Grading of whole programs: languages, checkers, interactors, and `Program`."""

from sandboxkit.integrations.rewards.programs._checkers import (
    Answer,
    ExactChecker,
    FloatsChecker,
    FunctionChecker,
    HostChecker,
    LinesChecker,
    Mark,
    TokensChecker,
    UnorderedLinesChecker,
)
from sandboxkit.integrations.rewards.programs._languages import LANGUAGES, Language, language_of
from sandboxkit.integrations.rewards.programs._program import Program
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

__all__ = [
    "LANGUAGES",
    "Answer",
    "ExactChecker",
    "FloatsChecker",
    "FunctionChecker",
    "HostChecker",
    "JudgeProgram",
    "Language",
    "LinesChecker",
    "Mark",
    "Program",
    "TokensChecker",
    "UnorderedLinesChecker",
    "language_of",
]
