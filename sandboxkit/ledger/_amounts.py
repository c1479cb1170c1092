"""Amounts: what sandboxes used, as numbers that can be added."""

import dataclasses
from dataclasses import dataclass


@dataclass(slots=True)
class Amounts:
    """Resource usage, summed over sandboxes. A figure counts only the time in which it was known.

    `processor_known`, `memory_known` and `bytes_known` say for how many of the `sandbox_seconds` that was; 0
    means that the figure is not known at all.
    """

    starts: int = 0
    """Sandboxes that were created."""
    sandbox_seconds: float = 0.0
    """Seconds from each creation to the deletion, summed over the sandboxes."""
    processor_seconds: float = 0.0
    """CPU time (s) of all processes in the sandboxes, the agent included where it runs in there."""
    processor_known: float = 0.0
    memory_byte_seconds: float = 0.0
    """Resident memory in bytes, integrated over time (s) from samples."""
    memory_known: float = 0.0
    sent_bytes: int = 0
    """Bytes sent to the sandboxes' agents, including what frames add."""
    received_bytes: int = 0
    """Bytes received from the sandboxes' agents, including what frames add."""
    bytes_known: float = 0.0

    def add(self, other: "Amounts") -> None:
        """Add the amounts of `other` to these."""
        for name in FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


FIELDS = tuple(field.name for field in dataclasses.fields(Amounts))
"""The names of the amounts, in the order of the file's columns."""
