"""A mistake in a task of `Program` is an error that names it, before any sandbox is made."""

from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards.programs import FloatsChecker, JudgeProgram, Program

CASE = {"stdin": "1\n", "stdout": "2\n"}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({}, "no cases"),
        ({"cases": []}, "no cases"),
        ({"cases": "1"}, "cases='1' is a str"),
        ({"cases": [3]}, "case 1 is 3, a int"),
        ({"cases": [CASE, {"stdin": "1"}]}, "case 2 has no expected output"),
        ({"cases": [{"stdin": 1, "stdout": "2"}]}, "case 1's stdin=1 is a int: give text"),
        ({"cases": [{"input": "1", "stdout": "2"}]}, "'input'.*write stdin"),
        ({"cases": [{"stdn": "1", "stdout": "2"}]}, "'stdn'.*did you mean 'stdin'"),
        ({"cases": [{**CASE, "rel_tol": 1}]}, "'rel_tol'.*in the task"),
        ({"cases": [{**CASE, "args": "-x"}]}, "args='-x' is a str: give a list of text"),
        ({"cases": [{**CASE, "files": {"../x": ""}}]}, "files=.*plain file names"),
        ({"cases": [{**CASE, "weight": -1}]}, "weight=-1 is a int: give a number >= 0"),
        ({"cases": [{**CASE, "weight": 0}]}, "every case has the weight 0"),
        ({"cases": [CASE], "language": "pythn"}, "did you mean 'python'"),
        ({"cases": [CASE], "language": 3}, "language=3 is a int"),
        ({"cases": [CASE], "languge": "c"}, "'languge'.*did you mean 'language'"),
        ({"cases": [CASE], "timeout": 3}, "'timeout'.*write time_limit"),
        ({"cases": [CASE], "memory_limit": 256}, "write memory_limit_mb"),
        ({"cases": [CASE], "memory_limit_mb": 2.5}, "memory_limit_mb=2.5 is a float"),
        ({"cases": [CASE], "time_limit": 0}, "time_limit=0 is a int: give a positive number"),
        ({"cases": [CASE], "time_limit": True}, "time_limit=True is a bool"),
        ({"cases": [CASE], "time_limit": 500}, "not below the grader's deadline"),
        ({"cases": [CASE], "checker": "token"}, "checker='token'"),
        ({"cases": [CASE], "checker": "tokens", "rel_tol": 0.1}, "use checker='floats'"),
        ({"cases": [CASE], "interactor": "int main() {}"}, "interactor=.*give a JudgeProgram"),
        ({"cases": [CASE], "checker": {"src": "x"}}, "is no checker or interactor"),
        ({"cases": [CASE], "interactor": {"source": "x", "language": "see"}}, "unknown language"),
        ({"cases": [CASE], "tests": "assert 1"}, "give them trust='shared', and no cases"),
        ({"tests": "assert 1"}, "give them trust='shared'"),
        ({"cases": [CASE], "trust": "shared"}, "trust='shared' but no tests"),
        ({"cases": [CASE], "public_tests": {"input": []}}, "load_code_contests"),
    ],
)
def test_a_mistake_is_named(task: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Program("python").validate(task)


def test_a_task_needs_a_language() -> None:
    with pytest.raises(ConfigurationError, match="the task has no language"):
        Program().validate({"cases": [CASE]})


def test_columns_of_a_data_set_pass() -> None:
    row = {"cases": [CASE], "prompt": "Add one.", "difficulty": 3, "title": "A", "checker": None}
    Program("c").validate(row)
    Program("c", ignore=("timeout",)).validate({**row, "timeout": 3})


def test_a_case_may_have_files_alone() -> None:
    Program("c").validate({"cases": [{"stdin": "", "outputs": {"out.txt": "1"}}]})


def test_a_row_of_json_describes_a_checker() -> None:
    checker = {"source": "int main() {}", "files": {"a.h": ""}, "language": "c", "most": 10}
    Program("c").validate({"cases": [CASE], "checker": checker})
    Program("c").validate({"cases": [{"stdin": "7"}], "interactor": {"source": "int main() {}"}})


def test_an_interactor_needs_no_expected_output() -> None:
    task = {"cases": [{"stdin": "7\n"}], "interactor": JudgeProgram("int main() {}")}
    Program("c").validate(task)


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
