"""No correct program is refused, however oddly it is written."""

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits
from tests.docker_here import require_docker
from tests.rewards.conftest import grade_all
from tests.rewards.honest import HONEST

pytestmark = pytest.mark.timeout(900)


def test_the_corpus_is_large_enough() -> None:
    assert len(HONEST) >= 60


@pytest.mark.parametrize(
    ("where", "in_turn"), [("local", False), ("local", True), ("docker", True)]
)
def test_no_odd_but_correct_program_is_refused(where: str, in_turn: bool) -> None:
    if where == "docker":
        require_docker()
    submissions = [(name, code, task) for name, (code, task) in HONEST.items()]
    verdicts = grade_all(where, HostCompare(Limits(timeout=60)), submissions, in_turn=in_turn)
    assert {name: each for name, each in verdicts.items() if each.score != 1} == {}
