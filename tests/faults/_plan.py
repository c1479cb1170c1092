"""What can go wrong on a connection, and which request it happens to."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Direction",
    "Drop",
    "Fault",
    "Half",
    "HttpAnswer",
    "Late",
    "Plan",
    "Request",
    "Reset",
    "SeededPlan",
    "Stall",
    "too_many_requests",
]

Direction = Literal["request", "answer", "both"]


@dataclass(frozen=True, slots=True)
class Request:
    """The beginning of an exchange: of one HTTP/1 request, or of a whole other connection."""

    number: int
    """Counted from 0 over all of a proxy's connections."""
    line: str
    """Such as "POST /v1.41/containers/create HTTP/1.1"; empty for what is not HTTP/1."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing passes any more, and the connection stays open, for `seconds` or until `heal()`."""

    direction: Direction = "both"
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset before anything of the request has passed."""


@dataclass(frozen=True, slots=True)
class Half:
    """The connection closes after so many bytes of the answer."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Late:
    """The request is held back so long; then all is well."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The proxy answers; the request does not pass. What is not HTTP/1 is reset instead."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """The request passes whole and its work is done, but the answer never comes.

    At the answer's first byte the connection is closed, is reset, or stays open in silence.
    """

    then: Literal["close", "reset", "stall"] = "close"


Fault = Stall | Reset | Half | Late | HttpAnswer | Drop

Plan = Callable[[Request], Fault | None]
"""Asked at the beginning of each exchange, on the proxy's thread; None lets it pass."""


def too_many_requests(retry_after: float) -> HttpAnswer:
    """HTTP 429 that names a time."""
    return HttpAnswer(
        429,
        b'{"message": "too many requests"}',
        {"Retry-After": f"{retry_after:g}", "Content-Type": "application/json"},
    )


class SeededPlan:
    """Gives a `share` of all requests one of `faults`; the same seed, the same choices.

    Each choice depends on the seed and the request's number alone.
    """

    def __init__(self, seed: int, faults: Sequence[Fault], share: float) -> None:
        self._seed, self._faults, self._share = seed, tuple(faults), share

    def __call__(self, request: Request) -> Fault | None:
        chance = random.Random(f"{self._seed}:{request.number}")
        if chance.random() >= self._share:
            return None
        return chance.choice(self._faults)
