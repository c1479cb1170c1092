"""No program in one sandbox changes the verdict on another, whatever it uses up of the kernel."""

import asyncio

import pytest

from tests.docker_here import require_docker
from tests.neighbours.attack import ATTACKS
from tests.neighbours.mixed import mixed
from tests.neighbours.places import PLACES, Neighbourhood
from tests.neighbours.runs import apart, batches, control, run

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]
"""The time is that of a failure, which runs each attack of a batch alone to name it."""

BATCHES = {batch[0].room == "loud": batch for batch in batches(list(ATTACKS.values()))}


WHERE = [
    ("local", False),
    pytest.param("local", True, marks=pytest.mark.nightly),
    ("docker strict", False),
    pytest.param("docker standard", False, marks=pytest.mark.nightly),
]
"""Those that keep a processor busy take long on docker: `python -m tests.neighbours --table` has them."""


def place_named(name: str) -> Neighbourhood:
    """A place, if its provider is here."""
    if PLACES[name].provider == "docker":
        require_docker()
    return PLACES[name]


def test_the_corpus_of_attacks_is_large_enough() -> None:
    assert len(ATTACKS) >= 50


def test_neighbours_without_attackers_get_their_verdicts() -> None:
    found = asyncio.run(control(PLACES["local"], list(ATTACKS.values())))
    assert not found.changed()


@pytest.mark.parametrize(("name", "loud"), WHERE)
def test_no_attacker_changes_a_verdict(name: str, loud: bool) -> None:
    place, batch = place_named(name), BATCHES[loud]
    found = asyncio.run(run(place, batch))
    for attack, grip in found.grips.items():
        assert grip.startswith(("holding ", "refused ")), f"{attack}: {grip}"
    known = {each.name for each in batch if name in each.known}
    if found.hit() - known:
        runs = asyncio.run(apart(place, batch, 1, 1))
        alone = {each: one.changed() for each, one in runs.items() if one.changed()}
        pytest.fail(f"together: {found.changed()}\nalone: {alone}")
    assert found.hit() == known, "strike what is `known` in attacks.toml and changes no verdict"


@pytest.mark.parametrize(
    "name", [pytest.param("local", marks=pytest.mark.nightly), "docker strict"]
)
def test_hostile_submissions_decide_nothing_but_their_own_grade(name: str) -> None:
    found = asyncio.run(mixed(place_named(name), list(ATTACKS.values()), 20, 0.2, seed=0))
    assert not found.changed, str(found)
