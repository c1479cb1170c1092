"""Checkers and interactors of a task run in sandboxes without a submission, and are blamed rightly."""

from collections.abc import Mapping
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Limits, Verdict
from sandboxkit.integrations.rewards.programs import JudgeProgram, Language, Program
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA, grade, grade_all

GIVEN = read(DATA / "judges.toml")
JUDGES = {name: JudgeProgram(**fields) for name, fields in GIVEN["judges"].items()}
CHECKED, PLAYED, SILENT = GIVEN["checked"], GIVEN["played"], GIVEN["silent"]
REWARDS = {"passed": 1, "infra_error": None}
SUMS = {"cases": [{"stdin": f"{n}\n", "stdout": f"1 {n - 1}\n"} for n in (5, 9)]}
GAME = {
    "cases": [{"stdin": "7\n"}, {"stdin": "999\n"}, {"stdin": "500\n"}],
    "interactor": JUDGES["interactor"],
}


def decided(verdicts: Mapping[str, Verdict], programs: Mapping[str, Mapping[str, str]]) -> None:
    found = {name: (verdict.outcome, verdict.reward) for name, verdict in verdicts.items()}
    outcomes = {name: program["outcome"] for name, program in programs.items()}
    wanted = {name: (outcome, REWARDS.get(outcome, 0)) for name, outcome in outcomes.items()}
    assert found == wanted, verdicts
    assert {verdict.trust for verdict in verdicts.values()} == {"isolated"}


def test_a_checker_decides(provider: str) -> None:
    task = {**SUMS, "checker": JUDGES["checker"]}
    todo = [(name, program["code"], task) for name, program in CHECKED.items()]
    decided(grade_all(provider, Program("python"), todo), CHECKED)


def test_points_are_a_share(provider: str) -> None:
    task = {**SUMS, "checker": JUDGES["checker"]}
    verdict = grade(provider, Program("python", partial=True), "print('half')", task)
    assert (verdict.outcome, verdict.score) == ("failed", 0.5)


def test_a_checker_in_cpp_with_its_header(provider: str) -> None:
    task = {**SUMS, "checker": JUDGES["cpp_checker"]}
    programs = {name: CHECKED[name] for name in ("another right answer", "a wrong answer")}
    todo = [(name, program["code"], task) for name, program in programs.items()]
    decided(grade_all(provider, Program("python"), todo, needs="cpp17"), programs)


def test_a_broken_checker_is_the_tasks_mistake() -> None:
    verdict = grade(
        "local", Program("python"), "print(1, 2)", {**SUMS, "checker": JUDGES["broken_checker"]}
    )
    assert verdict.reward is None
    assert "the task is at fault: its checker fails for the expected output too" in verdict.detail
    printed = {**SUMS, "checker": JudgeProgram("print(0)", language="python")}
    verdict = grade("local", Program("python"), "print(1, 2)", printed)
    assert verdict.reward is None
    assert "it prints '0' alone" in verdict.detail
    assert "protocol='printed'" in verdict.detail
    unfinished = {**SUMS, "checker": JudgeProgram("int main( {", language="c")}
    with pytest.raises(ConfigurationError, match="does not compile"):
        grade("local", Program("python"), "print(1, 2)", unfinished, needs="c")


@pytest.mark.parametrize(("played", "wall"), [(PLAYED, 60), (SILENT, 4)], ids=["all", "silent"])
def test_an_interactor_decides(provider: str, played: Mapping[str, Any], wall: float) -> None:
    grader = Program(
        "python", limits=Limits(timeout=2, wall=wall, memory_mb=512, output_limit=1 << 20)
    )
    todo = [(name, program["code"], GAME) for name, program in played.items()]
    decided(grade_all(provider, grader, todo), played)


def test_a_missing_interpreter_is_not_the_submissions_fault_in_a_dialogue() -> None:
    absent = Language(
        "absent", source="main.x", run=("no-such-interpreter", "main.x"), packages=("absent-dev",)
    )
    code = PLAYED["searches"]["code"]
    with pytest.raises(ConfigurationError, match=r"no no-such-interpreter.*absent-dev"):
        grade("local", Program(absent), code, GAME)
