"""The table of a sandbox's states is what the architecture page says."""

import re
from pathlib import Path

from sandboxkit._states import STOP_REQUESTED, TRANSITIONS, State

PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"


def test_architecture_has_the_table_of_states() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?)\|$", PAGE.read_text(), re.MULTILINE)
    written = {name: set(re.findall(r"`([A-Z_]+)`", names)) for name, names in rows}
    assert written == {
        state.name: {each.name for each in following} for state, following in TRANSITIONS.items()
    }


def test_a_sandbox_that_is_to_stop_is_never_started_again() -> None:
    for state in STOP_REQUESTED:
        assert TRANSITIONS[state] <= STOP_REQUESTED


def test_every_state_can_be_reached_and_ends() -> None:
    reached, seen = {State.NEW}, set[State]()
    while reached - seen:
        state = (reached - seen).pop()
        seen.add(state)
        reached |= TRANSITIONS[state]
        ends, before = {state}, None
        while ends != before:
            before = set(ends)
            ends |= {each for one in before for each in TRANSITIONS[one]}
        assert State.STOPPED in ends
    assert seen == set(State)
