"""Whatever a submission does to its sandbox while it is graded, it is scored: no mask, no exception."""

import textwrap

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from tests.docker_here import require_docker
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, read

pytestmark = pytest.mark.timeout(280)


GIVEN = read(DATA / "hostile_runs.toml")
HOSTILE = GIVEN["hostile"]
GOOD = "def f(x):\n    return x + 1\n"
CASES = {"entry_point": "f", "cases": [{"args": [1], "expected": 2}]}
TESTS = {"tests": "from solution import f\ndef test_it():\n    assert f(1) == 2\n"}


# What hurt an agent once; graded a second time where its user is root and beside tests.
WORST = (
    "kills its reaper",
    "leaves the agent no open files",
    "signals the agent without end",
    "forks without end",
)


@pytest.mark.parametrize(
    ("where", "task", "names", "in_turn"),
    [
        pytest.param("local", CASES, tuple(HOSTILE), False, marks=pytest.mark.nightly),
        ("local", CASES, tuple(HOSTILE), True),
        ("local", TESTS, WORST, False),
        ("docker", CASES, WORST, True),
    ],
    ids=["local", "in turn", "beside tests", "docker"],
)
def test_a_hostile_submission_is_scored_beside_others(
    where: str, task: dict[str, object], names: tuple[str, ...], in_turn: bool
) -> None:
    """All at once, so that they press on each other; an honest one beside them passes."""
    if where == "docker":
        require_docker()
    head = f"{GIVEN['prelude']}\ndef f(x):\n"
    submissions = [
        (name, f"{head}{textwrap.indent(HOSTILE[name], '    ')}\n    return 0\n", task)
        for name in names
    ]
    submissions.insert(len(submissions) // 2, ("honest", GOOD, task))
    limits = Limits(timeout=2.0, wall=4.0, deadline=200.0, memory_mb=192, retries=1)
    verdicts = grade_all(where, HostCompare(limits), submissions, in_turn=in_turn)
    assert [each for each in verdicts.values() if each.attributable_to != "policy"] == []
    assert {n for n, verdict in verdicts.items() if verdict.outcome is Outcome.PASSED} == {"honest"}
