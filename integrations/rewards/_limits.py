"""Limits on one run of a program. Exceeding one counts as the program's failure."""

import math
from dataclasses import dataclass

from sandboxkit import ConfigurationError, Session
from sandboxkit.types import Reuse

_WALL_FACTOR = 5
_WALL_EXTRA = 20.0
_TURN_SECONDS = 5.0
"""Upper bound in seconds between two runs in one slot of the pool: a reset or a new start."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run. Each run has a sandbox without network, in which no other run is active."""

    timeout: float = 10.0
    """CPU time limit in seconds, summed over all processes and threads of the run. CPU time that
    other programs use does not count. On a backend that does not report usage (`Sandbox.usage` is
    None) the limit applies to each process, rounded up to whole seconds."""
    output_limit: int = 16 << 20
    """Maximum size of the output, or of the returned value, in bytes. More is not graded."""
    memory_mb: int | None = None
    """Memory limit of the whole sandbox in MiB. Default: the provider's own limit."""
    retries: int = 2
    """How often a run is repeated after a failure of the infrastructure."""
    deadline: float = 900.0
    """Time limit of the infrastructure in seconds, for one run with all its retries. The clock runs
    while a sandbox starts and works for this run, and stops while the run waits because the session
    has reached its limit of sandboxes. A queue in which no sandbox starts or ends for this long has
    failed as well. The sample of a run past its deadline is masked."""
    python: str = "python3"
    """Python interpreter in the sandbox."""
    wall: float | None = None
    """Elapsed time limit in seconds for a run that sleeps or waits. Time in which other programs
    kept the run off the CPU, or in which the whole sandbox stood still, does not count where the
    backend reports it. Default: min(max(5*timeout, timeout + 20), (timeout + deadline) / 2)."""
    reuse: Reuse | None = None
    """`"reset"`: runs take turns in the sandboxes of the session's pool and fork a Python that is
    kept there. Each sandbox is verified to be clean between two runs, or replaced. `"never"`: each
    run has a fresh sandbox. Default: `"reset"` in a session with a pool whose provider can reset
    sandboxes. A submission's sandbox never holds an expected value, so one run cannot leave an
    answer there for the next."""

    def __post_init__(self) -> None:
        for name in ("timeout", "output_limit", "retries", "deadline", "wall", "memory_mb"):
            value = getattr(self, name)
            optional = name in ("wall", "memory_mb") and value is None
            if not optional and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigurationError(f"{name}={value!r} is not a number, such as 10")
        if self.timeout <= 0 or self.output_limit <= 0 or self.retries < 0:
            raise ConfigurationError(
                f"{self!r}: timeout and output_limit are positive, retries >= 0"
            )
        if self.deadline <= self.timeout:
            raise ConfigurationError(
                f"deadline={self.deadline!r} is not above timeout={self.timeout!r}; it also "
                "covers the start of a sandbox"
            )
        if self.wall is not None and not self.timeout <= self.wall < self.deadline:
            raise ConfigurationError(
                f"wall={self.wall!r} is not between timeout={self.timeout!r} and "
                f"deadline={self.deadline!r}"
            )

    def resets(self, session: Session) -> bool:
        """Whether runs reuse the sandboxes of the session's pool, one after another."""
        return self.reuse == "reset" or (self.reuse is None and session.resets)

    @property
    def longest(self) -> float:
        """The elapsed time limit of a run in seconds: `wall` or its default."""
        if self.wall is not None:
            return self.wall
        generous = max(_WALL_FACTOR * self.timeout, self.timeout + _WALL_EXTRA)
        return min(generous, (self.timeout + self.deadline) / 2)

    def longest_batch(self, runs: int, sandboxes: int) -> float:
        """Upper bound in seconds for `runs` runs in `sandboxes` sandboxes if every run sleeps.

        Each run sleeps until `wall`, and then its sandbox is cleaned or replaced. The bound does
        not include retries or CPU contention.
        """
        return math.ceil(runs / sandboxes) * (self.longest + _TURN_SECONDS)
