"""Cheats by somebody who has not read the design earn nothing, and honest solutions everything."""

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits
from tests.rewards.conftest import grade_all
from tests.rewards.corpus.strangers import BY_THEME, STRANGERS
from tests.rewards.corpus.strangers.plain import cheat_is_right, honest_is_right, honest_passes

_LIMITS = Limits(timeout=10, wall=20, memory_mb=256)
_BRIEF = Limits(timeout=3, wall=6, memory_mb=256)
"""For cheats, of which some use all of their time; what a judge may accept is accepted within a second."""
_HONEST = {(entry.honest, repr(entry.task)): entry for entry in STRANGERS}


def test_names_are_unique() -> None:
    assert len({entry.name for entry in STRANGERS}) == len(STRANGERS)


@pytest.mark.nightly
def test_honest_solutions_pass_in_one_process() -> None:
    refused = [
        entry.honest
        for entry in _HONEST.values()
        if not (honest_passes(entry) and honest_is_right(entry))
    ]
    assert not refused, "\n\n".join(refused)


@pytest.mark.nightly
def test_cheats_do_not_solve_the_task() -> None:
    assert [entry.name for entry in STRANGERS if cheat_is_right(entry)] == []


def test_honest_solutions_get_one() -> None:
    verdicts = grade_all(
        "local",
        HostCompare(_LIMITS),
        [(entry.name, entry.honest, entry.task) for entry in _HONEST.values()],
        in_turn=True,
    )
    refused = [
        f"{name}: {it.outcome} {it.score} {it.detail}"
        for name, it in verdicts.items()
        if it.score != 1
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", BY_THEME)
def test_cheats_get_nothing(theme: str) -> None:
    verdicts = grade_all(
        "local",
        HostCompare(_BRIEF),
        [(entry.name, entry.cheat, entry.task) for entry in BY_THEME[theme]],
        in_turn=True,
    )
    accepted = [
        f"{name}: {it.outcome} {it.score} {it.detail}"
        for name, it in verdicts.items()
        if it.score != 0 or it.attributable_to != "policy"
    ]
    assert not accepted, "\n".join(accepted)
