"""A mistake in a task of `Program` is an error that names it, before any sandbox is made."""

from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards.programs import FloatsChecker, JudgeProgram, Program
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA

MISTAKES = read(DATA / "mistakes.toml")["mistakes"]
CASE = {"stdin": "1\n", "stdout": "2\n"}


@pytest.mark.parametrize(("task", "words"), MISTAKES)
def test_a_mistake_is_named(task: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Program("python").validate(task)


def test_a_task_needs_a_language() -> None:
    with pytest.raises(ConfigurationError, match="the task has no language"):
        Program().validate({"cases": [CASE]})


@pytest.mark.parametrize(
    "task",
    [
        {"cases": [CASE], "prompt": "Add one.", "difficulty": 3, "title": "A", "checker": None},
        {"cases": [CASE], "timeout": 3},
        {"cases": [{"stdin": "", "outputs": {"out.txt": "1"}}]},
        {
            "cases": [CASE],
            "checker": {"source": "x", "files": {"a.h": ""}, "language": "c", "most": 10},
        },
        {"cases": [{"stdin": "7"}], "interactor": {"source": "int main() {}"}},
        {"cases": [{"stdin": "7"}], "interactor": JudgeProgram("int main() {}")},
    ],
    ids=["columns", "ignored", "files alone", "a checker in JSON", "an interactor", "a program"],
)
def test_a_task_may_have_columns_files_and_judges(task: dict[str, Any]) -> None:
    Program("c", ignore=("timeout",)).validate(task)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Program("c", ignore="timeout"),
        lambda: Program("see"),
        lambda: FloatsChecker(rel_tol=-1),
        lambda: JudgeProgram(""),
        lambda: JudgeProgram("x", {"a/b": ""}),
        lambda: JudgeProgram("x", language="pyhton"),
        lambda: JudgeProgram("x", most=0),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()
