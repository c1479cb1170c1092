"""Checkers and interactors of a task run in sandboxes without a submission, and are blamed rightly."""

from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Limits, Outcome
from sandboxkit.integrations.rewards.programs import JudgeProgram, Language, Program
from tests.rewards.programs.conftest import grade, grade_all, options_for
from tests.rewards.programs.testlib_like import (
    BROKEN_CHECKER,
    CHECKER,
    CPP_CHECKER,
    INTERACTOR,
)

SUMS: dict[str, Any] = {"cases": [{"stdin": f"{n}\n", "stdout": f"1 {n - 1}\n"} for n in (5, 9)]}
CHECKED = {
    "another right answer": ("n = int(input()); print(2, n - 2)", Outcome.PASSED, 1),
    "a wrong answer": ("n = int(input()); print(0, n)", Outcome.FAILED, 0),
    "another format": ("print(1)", Outcome.FAILED, 0),
    "nothing": ("", Outcome.FAILED, 0),
    "what crashes the checker": ("print('crash')", Outcome.FAILED, 0),
    "what the checker cannot read": ("print('a b')", Outcome.FAILED, 0),
    "better than the jury": ("print('better')", Outcome.INFRA_ERROR, None),
    "half": ("print('half')", Outcome.FAILED, 0),
}


def test_a_checker_decides(provider: str) -> None:
    options = options_for(provider, "python")
    task = {**SUMS, "checker": CHECKER}
    todo = [(name, code, task) for name, (code, *_) in CHECKED.items()]
    verdicts = grade_all(provider, Program("python"), todo, **options)
    found = {name: (verdict.outcome, verdict.reward) for name, verdict in verdicts.items()}
    assert found == {name: tuple(rest) for name, (_, *rest) in CHECKED.items()}, verdicts
    assert {verdict.trust for verdict in verdicts.values()} == {"isolated"}


def test_points_are_a_share(provider: str) -> None:
    options = options_for(provider, "python")
    task = {**SUMS, "checker": CHECKER}
    verdict = grade(provider, Program("python", partial=True), "print('half')", task, **options)
    assert (verdict.outcome, verdict.score) == (Outcome.FAILED, 0.5)


def test_a_checker_in_cpp_with_its_header(provider: str) -> None:
    options = options_for(provider, "cpp17")
    task = {**SUMS, "checker": CPP_CHECKER}
    todo = [(name, CHECKED[name][0], task) for name in ("another right answer", "a wrong answer")]
    verdicts = grade_all(provider, Program("python"), todo, **options)
    assert [verdict.reward for verdict in verdicts.values()] == [1, 0]


@pytest.mark.parametrize(
    ("checker", "words"),
    [
        (BROKEN_CHECKER, "fails for the expected output too"),
        (JudgeProgram("int main( {", language="c"), "does not compile"),
    ],
)
def test_a_broken_checker_is_the_tasks_mistake(checker: JudgeProgram, words: str) -> None:
    options = options_for("local", checker.language)
    with pytest.raises(BaseExceptionGroup) as raised:
        grade("local", Program("python"), "print(1, 2)", {**SUMS, "checker": checker}, **options)
    assert raised.group_contains(ConfigurationError, match=words)


SEARCH = """\
low, high = 0, 1000
while low < high:
    middle = (low + high) // 2
    print("?", middle, flush=True)
    answer = input()
    if answer == "=": low = high = middle
    elif answer == "<": high = middle
    else: low = middle + 1
print("!", low, flush=True)
"""
GAME: dict[str, Any] = {
    "cases": [{"stdin": "7\n"}, {"stdin": "999\n"}, {"stdin": "500\n"}],
    "interactor": INTERACTOR,
}
SILENT = {
    "says nothing": ("input()", Outcome.TIMEOUT, 0),
    "does not flush": ("import os\nprint('? 1')\nos.read(0, 9)", Outcome.TIMEOUT, 0),
    "sleeps at the end": (SEARCH + "\nimport time; time.sleep(99)", Outcome.TIMEOUT, 0),
}
"""What only the limit of the whole dialogue ends, which for the others is far away."""
PLAYED = {
    "searches": (SEARCH, Outcome.PASSED, 1),
    "guesses": ("print('! 7', flush=True)", Outcome.FAILED, 0),
    "asks too much": ("while True: print('? 1', flush=True); input()", Outcome.FAILED, 0),
    "speaks nonsense": ("print('hello', flush=True)\ninput()", Outcome.FAILED, 0),
    "ends early": ("", Outcome.FAILED, 0),
    "crashes": (
        "import os; print('? 1', flush=True); input(); os.abort()",
        Outcome.RUNTIME_ERROR,
        0,
    ),
    "does not end": (SEARCH + "\nwhile True: pass", Outcome.TIMEOUT, 0),
    "fails at the end": (SEARCH + "\nraise SystemExit(1)", Outcome.RUNTIME_ERROR, 0),
    "floods": ("print('? ' * (1 << 20), end='', flush=True)\ninput()", Outcome.TRUNCATED, 0),
    "breaks the interactor": ("print('? crash', flush=True); input()", Outcome.FAILED, 0),
    "meets bad data": ("print('? jury', flush=True); input()", Outcome.INFRA_ERROR, None),
}


@pytest.mark.parametrize(("played", "wall"), [(PLAYED, 60), (SILENT, 4)], ids=["all", "silent"])
def test_an_interactor_decides(
    provider: str, played: dict[str, tuple[str, Outcome, float | None]], wall: float
) -> None:
    options = options_for(provider, "python")
    grader = Program("python", limits=Limits(timeout=2, wall=wall, memory_mb=512))
    todo = [(name, code, GAME) for name, (code, *_) in played.items()]
    verdicts = grade_all(provider, grader, todo, **options)
    found = {name: (verdict.outcome, verdict.reward) for name, verdict in verdicts.items()}
    assert found == {name: tuple(rest) for name, (_, *rest) in played.items()}, verdicts


def test_a_missing_interpreter_is_not_the_submissions_fault_in_a_dialogue() -> None:
    absent = Language(
        "absent", source="main.x", run=("no-such-interpreter", "main.x"), packages=("absent-dev",)
    )
    options = options_for("local", "python")
    task = {"cases": [{"stdin": "1\n"}], "interactor": INTERACTOR}
    with pytest.raises(BaseExceptionGroup) as raised:
        grade("local", Program(absent), SEARCH, task, **options)
    assert raised.group_contains(ConfigurationError, match=r"no no-such-interpreter.*absent-dev")
