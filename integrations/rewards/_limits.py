"""What one run of a program may use before it is the program's own failure."""

from dataclasses import dataclass

from sandboxkit import ConfigurationError, Session
from sandboxkit.types import Reuse

_WALL_FACTOR = 5
_WALL_EXTRA = 20.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use. Each has a sandbox without network that no other run is in."""

    timeout: float = 10.0
    """Seconds of processor time, of all its processes and threads together: what others take of
    the machine does not count. Where a backend cannot tell (`Sandbox.usage`), it holds for each
    process, rounded up to whole seconds."""
    output_limit: int = 1024 * 1024
    """Bytes of output, or of the value that a function returned; more is not graded."""
    memory_mb: int | None = None
    """For the whole sandbox; None for the provider's own limit."""
    retries: int = 2
    """How often a run is tried again after a failure of the infrastructure."""
    deadline: float = 900.0
    """Seconds for one run with all its retries and its waiting for a sandbox, also for room in
    the session; past them the infrastructure has failed."""
    python: str = "python3"
    wall: float | None = None
    """Seconds after which a program that sleeps or waits for itself has timed out. They count
    from its start, without the time in which others kept the processors from it or the whole
    sandbox stood still; where a backend cannot tell that, without exception. None: five times
    `timeout` and at least 20 s above it, but half-way to the deadline at most."""
    reuse: Reuse | None = None
    """`reset`: runs take turns in the sandboxes of the session's pool, each proven between two to be
    as it was before its first or else thrown away, and fork a Python that is kept there; `never`:
    each has a fresh one. None is `reset` in a session with a pool, whose provider can: there is no
    expected value in a submission's sandbox, so what could be left there for the next tells nothing
    that passes."""

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.output_limit <= 0 or self.retries < 0:
            raise ConfigurationError(
                f"{self!r}: timeout and output_limit are positive, retries >= 0"
            )
        if self.deadline <= self.timeout:
            raise ConfigurationError(
                f"deadline={self.deadline!r} is not above timeout={self.timeout!r}; it also "
                "covers waiting for a sandbox"
            )
        if self.wall is not None and not self.timeout <= self.wall < self.deadline:
            raise ConfigurationError(
                f"wall={self.wall!r} is not between timeout={self.timeout!r} and "
                f"deadline={self.deadline!r}"
            )

    def resets(self, session: Session) -> bool:
        """Whether runs take turns in the session's sandboxes."""
        return self.reuse == "reset" or (self.reuse is None and session.resets)

    @property
    def longest(self) -> float:
        """`wall`, or what stands for None."""
        if self.wall is not None:
            return self.wall
        generous = max(_WALL_FACTOR * self.timeout, self.timeout + _WALL_EXTRA)
        return min(generous, (self.timeout + self.deadline) / 2)
