"""Grading of whole programs: languages, checkers, interactors, and `Program`."""

from sandboxkit.integrations.rewards._checkers import (
    Answer,
    ExactChecker,
    FloatsChecker,
    FunctionChecker,
    LinesChecker,
    Mark,
    TokensChecker,
    UnorderedLinesChecker,
)
from sandboxkit.integrations.rewards.programs._doctor import LanguageReport, check_languages
from sandboxkit.integrations.rewards.programs._execute import ProgramInput
from sandboxkit.integrations.rewards.programs._languages import LANGUAGES, Language, language_of
from sandboxkit.integrations.rewards.programs._loaders import (
    load_apps,
    load_code_contests,
    load_codeforces,
    load_live_code_bench,
    load_taco,
)
from sandboxkit.integrations.rewards.programs._packages import load_icpc, load_polygon
from sandboxkit.integrations.rewards.programs._program import Program
from sandboxkit.integrations.rewards.programs._run_source import SourceRun, run_source
from sandboxkit.integrations.rewards.programs._testlib import JudgeProgram

__all__ = [
    "LANGUAGES",
    "Answer",
    "ExactChecker",
    "FloatsChecker",
    "FunctionChecker",
    "JudgeProgram",
    "Language",
    "LanguageReport",
    "LinesChecker",
    "Mark",
    "Program",
    "ProgramInput",
    "SourceRun",
    "TokensChecker",
    "UnorderedLinesChecker",
    "check_languages",
    "language_of",
    "load_apps",
    "load_code_contests",
    "load_codeforces",
    "load_icpc",
    "load_live_code_bench",
    "load_polygon",
    "load_taco",
    "run_source",
]
