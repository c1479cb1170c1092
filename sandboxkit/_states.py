"""The lifecycle states of one sandbox in its session, and the allowed transitions."""

from enum import Enum


class State(Enum):
    """The lifecycle state of a sandbox; messages quote the values."""

    NEW = "is not started"
    QUEUED = "waits for room"
    STARTING = "starts"
    RUNNING = "runs"
    ENDED = "has ended by itself"
    UNDOING = "is being removed, because nothing waits for its start any more"
    LEFT_OVER = "failed to start, and could not be removed yet"
    STOPPING = "is being stopped"
    STUCK = "could not be removed yet"
    STOPPED = "is stopped"

    __hash__ = object.__hash__  # Enum's own is a Python function, called at each look at a state


TRANSITIONS: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.QUEUED, State.STARTING, State.STOPPING}),
    State.QUEUED: frozenset({State.STARTING, State.NEW, State.LEFT_OVER, State.STOPPING}),
    State.STARTING: frozenset({State.RUNNING, State.NEW, State.LEFT_OVER, State.STOPPING}),
    State.RUNNING: frozenset({State.ENDED, State.UNDOING, State.STOPPING, State.STOPPED}),
    State.ENDED: frozenset({State.UNDOING, State.STOPPING}),
    State.UNDOING: frozenset({State.NEW, State.LEFT_OVER, State.STOPPING}),
    State.LEFT_OVER: frozenset({State.QUEUED, State.STARTING, State.UNDOING, State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED, State.STUCK}),
    State.STUCK: frozenset({State.STOPPING}),
    State.STOPPED: frozenset(),
}
"""The states that may follow each state. NEW goes directly to STARTING if it already has room.
RUNNING goes directly to STOPPED if another sandbox object takes over the running sandbox."""

STOP_REQUESTED = frozenset({State.STOPPING, State.STUCK, State.STOPPED})
"""The states after `stop()`: new calls are refused."""
WITHOUT_ROOM = frozenset({State.NEW, State.QUEUED, State.ENDED, State.STOPPED})
"""The states that count towards no cap."""
