"""No correct program is refused, however oddly it is written."""

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits
from tests.rewards.conftest import grade_all
from tests.rewards.honest import HONEST

pytestmark = pytest.mark.timeout(900)


def test_the_corpus_is_large_enough() -> None:
    assert len(HONEST) >= 60


def test_no_odd_but_correct_program_is_refused(provider: str) -> None:
    submissions = [(name, code, task) for name, (code, task) in HONEST.items()]
    verdicts = grade_all(provider, HostCompare(Limits(timeout=60)), submissions)
    assert {name: each for name, each in verdicts.items() if each.score != 1} == {}
