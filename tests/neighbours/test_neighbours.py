"""No program in one sandbox changes the verdict on another, whatever it uses up of the kernel."""

import asyncio

import pytest

from tests.docker_here import require_docker
from tests.neighbours.gradings import ATTACKS, PLACES, Neighbourhood
from tests.neighbours.runs import mixed, neighbours, run, unexpected

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]
"""The time is that of a failure, which runs each suspected attack alone to name it."""

ALL = list(ATTACKS.values())
NIGHTLY = pytest.mark.nightly


def place_named(name: str) -> Neighbourhood:
    """A place, if its provider is here."""
    if PLACES[name].provider == "docker":
        require_docker()
    return PLACES[name]


def test_neighbours_without_attackers_get_their_verdicts() -> None:
    assert len(ALL) >= 50
    graded = asyncio.run(neighbours(PLACES["local"], ALL, PLACES["local"].pools[-1:]))
    assert not [str(each) for each in graded if each.changed]


# Those that keep a processor busy take long on docker: `python -m tests.neighbours --table` has them.
@pytest.mark.parametrize(
    ("name", "loud"),
    [
        ("local", False),
        pytest.param("local", True, marks=NIGHTLY),
        ("docker strict", False),
        pytest.param("docker standard", False, marks=NIGHTLY),
    ],
)
def test_no_attacker_changes_a_verdict(name: str, loud: bool) -> None:
    place, batch = place_named(name), [each for each in ALL if (each.room == "loud") is loud]
    found = asyncio.run(run(place, batch))
    for attack, grip in found.grips.items():
        assert grip.startswith(("holding ", "refused ")), f"{attack}: {grip}"
    known = {each.name for each in batch if name in each.known}
    if unknown := found.hit() - known:
        alone = {each: asyncio.run(run(place, [ATTACKS[each]])).changed() for each in unknown}
        pytest.fail(f"together: {found.changed()}\nalone: {alone}")
    assert found.hit() == known, "strike what is `known` in attacks.toml and changes no verdict"


@pytest.mark.parametrize("name", [pytest.param("local", marks=NIGHTLY), "docker strict"])
def test_hostile_submissions_decide_nothing_but_their_own_grade(name: str) -> None:
    place = place_named(name)
    assert unexpected(place, asyncio.run(mixed(place, ALL, 20, 0.2, seed=0))) == []
