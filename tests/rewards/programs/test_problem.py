"""A mistake in a task of `Program` is an error that names it, before any sandbox is made."""

from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import programs
from sandboxkit.integrations.rewards.programs import JudgeProgram, Program
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA

GIVEN = read(DATA / "mistakes.toml")
CASE = {"stdin": "1\n", "stdout": "2\n"}


@pytest.mark.parametrize(("task", "words"), GIVEN["mistakes"])
def test_a_mistake_is_named(task: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Program("python").validate(task)


def test_a_task_needs_a_language() -> None:
    with pytest.raises(ConfigurationError, match="the task has no language"):
        Program().validate({"cases": [CASE]})


@pytest.mark.parametrize("name", GIVEN["tasks"])
def test_a_task_may_have_columns_files_and_judges(name: str) -> None:
    Program("c", ignore=("timeout",)).validate({"checker": None, **GIVEN["tasks"][name]})


def test_an_interactor_may_be_a_program() -> None:
    Program("c").validate({"cases": [{"stdin": "7"}], "interactor": JudgeProgram("int main() {}")})


@pytest.mark.parametrize(("name", "options"), GIVEN["options"], ids=str)
def test_an_option_that_cannot_be_used_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        getattr(programs, name)(**options)
