"""Waits for a descriptor of any number; `select.select` accepts only those below 1,024."""

import select


def readable(descriptor: int, seconds: float) -> bool:
    """Whether the descriptor becomes readable, or reaches its end, within `seconds`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))
