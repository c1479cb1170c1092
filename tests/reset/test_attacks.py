"""What one job does to its sandbox, the next one neither sees nor feels."""

import pytest

from tests.reset.attacks import ATTACKS
from tests.reset.jobs import Target

pytestmark = pytest.mark.alone


def test_the_corpus_of_attacks_is_large_enough() -> None:
    assert len(ATTACKS) >= 40


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_reaches_the_next_job(target: Target, name: str) -> None:
    outcome, felt = target.felt_after_a_reset(name)
    assert not felt, "\n".join(felt)
    assert outcome == "clean" or target.may_give_up(name), target.why_given_up


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_detected_without_a_reset(commands: Target, name: str) -> None:
    where = ATTACKS[name].felt
    if "maybe" not in where:
        assert bool(commands.felt_without_a_reset(name)) == (commands.name in where)
