"""In every corpus what is correct passes, however odd it is; no cheat on an isolated task is paid; shared tasks say why."""

import json
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import HostCompare, Limits
from tests.docker_here import require_docker
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import CORPORA, DATA, Item, humaneval

pytestmark = pytest.mark.timeout(600)
EVERY = 5
"""On docker, where the same graders run, one submission in so many is graded."""
Submission = tuple[str, str, Item]


def check_all(where: str, submissions: list[Submission], *, passed: bool) -> None:
    """Grade all, and show those whose verdict is not what it should be."""
    if where == "docker":
        require_docker()
        submissions = submissions[::EVERY]
    by_limits: dict[Limits, list[Submission]] = {}
    for name, code, item in submissions:
        by_limits.setdefault(item.limits, []).append((name, code, item))
    wrong = []
    for limits, group in by_limits.items():
        rows = [(name, code, item.row) for name, code, item in group]
        verdicts = grade_all(where, HostCompare(limits), rows, in_turn=True)
        for name, _, item in group:
            verdict = verdicts[name]
            wanted = (float(passed), "shared" if item.shared else "isolated", "policy")
            if (verdict.reward, verdict.trust, verdict.attributable_to) != wanted:
                wrong.append((name, verdict))
    assert wrong == []


@pytest.mark.parametrize("where", ["local", "docker"])
@pytest.mark.parametrize("corpus", CORPORA)
def test_what_is_correct_is_paid(where: str, corpus: str) -> None:
    submissions = [
        (f"{item.name} {number}", code, item)
        for item in CORPORA[corpus]
        for number, code in enumerate(item.honest)
    ]
    check_all(where, submissions, passed=True)


@pytest.mark.parametrize("corpus", CORPORA)
def test_what_is_wrong_or_a_cheat_is_not_paid(corpus: str) -> None:
    submissions = [
        (f"{item.name}: {name}", code, item)
        for item in CORPORA[corpus]
        for name, code in item.fails.items()
    ]
    check_all("local", submissions, passed=False)


def test_a_shared_task_is_refused_where_that_is_asked_for_and_the_error_says_why() -> None:
    strict = HostCompare(shared="refuse")
    for item in [item for corpus in CORPORA.values() for item in corpus]:
        if not item.shared:
            strict.validate(item.row)
            continue
        with pytest.raises(ConfigurationError, match=f"{item.shared}.*submission's process"):
            strict.validate(item.row)


# Any: a row of MBPP.
def shared_by(row: dict[str, Any]) -> str:
    """The reason for the one task of the 500 whose setup makes objects of the submission's class."""
    return "make an object" if "Node(" in row["test_setup_code"] else ""


@pytest.mark.parametrize("where", ["local", "docker"])
def test_humaneval_accepts_its_solutions_and_no_others(where: str) -> None:
    rows = humaneval()
    assert len(rows) == 164
    items = [Item(row["task_id"], row, row["prompt"] + row["canonical_solution"]) for row in rows]
    check_all(where, [(item.name, item.honest[0], item) for item in items], passed=True)
    wrong = [(item.name, item.row["prompt"] + "    return 0.5", item) for item in items]
    check_all(where, wrong[::EVERY], passed=False)


@pytest.mark.parametrize("where", ["local", "docker"])
def test_no_reference_solution_of_mbpp_is_refused(where: str) -> None:
    rows = [json.loads(line) for line in (DATA / "mbpp_500.jsonl").read_text().splitlines()]
    items = [Item(str(row["task_id"]), row, row["code"], shared=shared_by(row)) for row in rows]
    assert [item.name for item in items if item.shared] == ["367"]
    check_all(where, [(item.name, item.honest[0], item) for item in items], passed=True)
