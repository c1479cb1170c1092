"""Waiting for a descriptor of any number: `select.select` takes those below 1,024 only."""

import select

__all__ = ["readable"]


def readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or an end, within so many seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))
