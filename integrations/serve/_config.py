"""The configuration of one replica of the service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Grader, HostCompare
from sandboxkit.integrations.serve._tokens import Token
from sandboxkit.provider import Provider


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The backend, grader, clients and limits of a replica.

    Raises ConfigurationError for a limit below 1, and for two tokens with one name or one secret.
    """

    provider: str | Provider | None = None
    grader: Grader = field(default_factory=HostCompare)
    """Grades the tasks of `/v1/grade`, `/v1/score` and `/slime`."""
    tokens: tuple[Token, ...] = ()
    """The accepted bearer tokens. If empty, every request to this machine's loopback is accepted."""
    pool: int | None = None
    """Number of warm sandboxes for grading; see `grading_session`."""
    queue: int = 2048
    """Maximum number of submissions, programs and commands that run or wait; more get status 429."""
    sandboxes: int = 64
    """Maximum number of sandboxes that this replica has created for clients."""
    lifetime: float = 3600.0
    """Maximum lifetime of a client's sandbox in seconds."""
    lease: float = 60.0
    """Seconds for which a sandbox survives its owner's last link, so that the owner can reconnect."""
    deadline: float = 600.0
    """Time limit of a request in seconds; the work that it started is then killed."""
    max_body: int = 64 * 1024 * 1024
    """Maximum size of a request's body in bytes; a larger one gets status 413."""
    drain: float = 120.0
    """Seconds for which requests in progress may continue after SIGTERM."""
    tags: tuple[str, ...] = ("sandboxkit-serve",)
    """Tags of every sandbox of the service, for `sandboxkit ls` and `cleanup`."""
    options: dict[str, Any] = field(
        default_factory=dict
    )  # Any: SandboxSpec's, as Session takes them
    """Further options of the sandboxes that clients create. A client may lower their limits."""
    allow: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What clients may name: an "image", "network", "user" or "gpu". In an image `*` stands for text without
    "/", and never matches a path. On local, the network "internet" includes the server's loopback."""

    def __post_init__(self) -> None:
        for name in ("queue", "sandboxes", "lifetime", "lease", "deadline", "max_body"):
            value = getattr(self, name)
            if not value >= 1:
                raise ConfigurationError(f"{name}={value!r}: give a number >= 1")
        names = [token.name for token in self.tokens]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two tokens are named {name!r}; give each its own name")
        owners: dict[str, str] = {}
        for token in self.tokens:
            if (other := owners.setdefault(token.secret, token.name)) != token.name:
                raise ConfigurationError(
                    f"tokens {other!r} and {token.name!r} have one secret; give each its own"
                )
