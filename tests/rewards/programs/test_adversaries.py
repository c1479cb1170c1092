"""No cheat passes or is masked and no odd honest program fails; afterwards nothing is left."""

import dataclasses
from pathlib import Path

import pytest

from sandboxkit.integrations import rewards
from sandboxkit.integrations.rewards import Limits, Outcome
from sandboxkit.integrations.rewards.programs import Program
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA, grade_all

CHEATS, HONEST = read(DATA / "cheats.toml"), read(DATA / "honest.toml")
_LIMITS = Limits(timeout=1, wall=2, memory_mb=512, output_limit=1 << 20)
_GRADER = Program(limits=_LIMITS, compile_limits=Limits(timeout=5))
_LANGUAGES = ("python", "c", "cpp17")
_EVERY = 3
"""Of the programs one in so many is graded on docker as well, by the same grader."""


@pytest.mark.parametrize("language", _LANGUAGES)
def test_no_cheat_is_accepted_or_masked(provider: str, language: str) -> None:
    task = {"cases": CHEATS["cases"], "language": language}
    todo = [(name, code, task) for name, code in CHEATS[language].items()]
    todo = todo if provider == "local" else todo[::_EVERY]
    verdicts = grade_all(provider, _GRADER, todo, needs=language)
    assert {name: verdict for name, verdict in verdicts.items() if verdict.reward != 0} == {}
    assert {verdict.trust for verdict in verdicts.values()} == {"isolated"}


@pytest.mark.parametrize("language", [*_LANGUAGES, "bash"])
def test_every_odd_honest_program_is_accepted(provider: str, language: str) -> None:
    grader = dataclasses.replace(_GRADER, limits=dataclasses.replace(_LIMITS, timeout=5, wall=25))
    task = {"cases": HONEST["cases"], "language": language}
    todo = [(name, code, task) for name, code in HONEST[language].items()]
    todo = todo if provider == "local" else todo[::_EVERY]
    verdicts = grade_all(provider, grader, todo, needs=language)
    wrong = {name: each for name, each in verdicts.items() if each.outcome is not Outcome.PASSED}
    assert wrong == {}


def test_the_document_counts_the_corpora() -> None:
    document = Path(str(rewards.__file__)).resolve().with_name("CHEATS.md").read_text()
    for language in (*_LANGUAGES, "bash"):
        cheats, honest = (len(corpus.get(language, ())) for corpus in (CHEATS, HONEST))
        assert f"| {language} | {f'0 of {cheats}' * bool(cheats)} | 0 of {honest} |" in document
