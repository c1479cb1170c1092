"""The configuration of one replica of the service."""

from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Grader, HostCompare
from sandboxkit.integrations.serve._tokens import Token
from sandboxkit.provider import Provider


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The backend, grader, clients and bounds of a replica. Raises ConfigurationError for a bound below 1."""

    provider: str | Provider | None = None
    grader: Grader = field(default_factory=HostCompare)
    """Grades the tasks of `/v1/grade`, `/v1/score` and `/slime`."""
    tokens: tuple[Token, ...] = ()
    """The bearer tokens that are accepted. Without any, every request is accepted."""
    pool: int | None = None
    """How many sandboxes are kept warm; see `grading_session`."""
    queue: int = 2048
    """How many submissions and programs run or wait at most; a request beyond gets status 429."""
    sandboxes: int = 64
    """How many sandboxes clients may hold at most, of those that this replica created."""
    lifetime: float = 3600.0
    """After how many seconds a client's sandbox ends by itself, at most."""
    lease: float = 60.0
    """How many seconds a sandbox whose owner has gone lives on, so that a broken link can come back."""
    deadline: float = 600.0
    """How many seconds a request may take; what it started is killed then."""
    max_body: int = 64 * 1024 * 1024
    """The most bytes in the body of a request; a longer one gets status 413."""
    drain: float = 120.0
    """How many seconds requests may finish after SIGTERM."""
    tags: tuple[str, ...] = ("sandboxkit-serve",)
    """Tags of every sandbox of the service, for `sandboxkit ls` and `cleanup`."""
    options: dict[str, Any] = field(
        default_factory=dict
    )  # Any: SandboxSpec's, as Session takes them
    """Further options of the sandboxes that clients create."""

    def __post_init__(self) -> None:
        for name in ("queue", "sandboxes", "lifetime", "lease", "deadline", "max_body"):
            value = getattr(self, name)
            if not value >= 1:
                raise ConfigurationError(f"{name}={value!r}: give a number from 1")
        names = [token.name for token in self.tokens]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two tokens are named {name!r}; give each its own name")
