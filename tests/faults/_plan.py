"""What can go wrong with a request, and which request it happens to."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
    """Nothing passes any more, and the connection stays open, for `seconds` or until it is healed."""

    direction: Direction = "both"
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset before anything of the request has passed."""


@dataclass(frozen=True, slots=True)
class Half:
    """The connection closes after so many bytes of the answer; in a server, after its first piece."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Late:
    """The request is held back so long; then all is well."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """This is the answer; the request does not pass. What is not HTTP is reset instead."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """The request passes whole and its work is done, but the answer never comes.

    At the answer's first byte the connection is closed, is reset, or stays open in silence.
    """

    then: Literal["close", "reset", "stall"] = "close"


@dataclass(frozen=True, slots=True)
class RpcAnswer:
    """A gRPC server fails the call with this status, without doing the work."""

    status: str
    message: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Garbage:
    """A gRPC server answers with bytes that are no message."""


@dataclass(frozen=True, slots=True)
class End:
    """All sandboxes of an emulator end just before the answer, or in the middle of it."""


Fault = Stall | Reset | Half | Late | HttpAnswer | Drop | RpcAnswer | Garbage | End

Plan = Callable[[Request], Fault | None]
"""Asked at the beginning of each exchange, on the proxy's thread; None lets it pass."""


def too_many_requests(retry_after: float) -> HttpAnswer:
    """HTTP 429 that names a time."""
    headers = {"Retry-After": f"{retry_after:g}", "Content-Type": "application/json"}
    return HttpAnswer(429, b'{"message": "too many requests"}', headers)


@dataclass
class Rule:
    """A fault of an emulator, for the requests with a name."""

    name: str
    fault: Fault
    skip: int = 0
    times: int = 1_000_000
    per_second: int = 0
    """Number of matching requests per second that pass without the fault."""
    skip_replies: int = 0
    """Number of replies of a streaming call that still arrive."""
    passed: list[float] = field(default_factory=list)
    cleared: asyncio.Event = field(default_factory=asyncio.Event)

    def applies(self) -> bool:
        """Whether the next request meets the fault; it is counted."""
        now = time.monotonic()
        self.passed = [each for each in self.passed if each > now - 1]
        if self.skip:
            self.skip -= 1
        elif len(self.passed) < self.per_second:
            self.passed.append(now)
        elif self.times:
            self.times -= 1
            return True
        return False


class Rules:
    """The faults that the tests have planned in an emulator, in the order in which they apply."""

    def __init__(self, matches: Callable[[str, str], bool]) -> None:
        """`matches` says whether a request of the first name meets a rule for the second one."""
        self._matches = matches
        self._rules: list[Rule] = []

    # Any: numbers and texts, as they come from the tests.
    def plan(self, name: str, kind: str, **details: Any) -> None:
        """Add a fault by its name in `KINDS`; `details` are of its rule and of the fault itself."""
        of_rule = {key: details.pop(key) for key in list(details) if key in Rule.__annotations__}
        self._rules.append(Rule(name, KINDS[kind](**details), **of_rule))

    def take(self, name: str) -> Rule | None:
        """Return the rule that applies to this request, if any, and count it."""
        return next((r for r in self._rules if self._matches(name, r.name) and r.applies()), None)

    def clear(self) -> None:
        """Remove all faults; what they stall continues."""
        for rule in self._rules:
            rule.cleared.set()
        self._rules.clear()


# Any: JSON, as a vendor would send it.
def _http(status: int = 500, body: Any = "", headers: Mapping[str, str] | None = None) -> Fault:
    is_text = isinstance(body, str)
    content = (body if is_text else json.dumps(body)).encode()
    kind = {"content-type": "text/html" if is_text else "application/json"}
    return HttpAnswer(status, content, {**kind, **(headers or {})})


def _status(status: int | str = 500, **details: Any) -> Fault:
    return RpcAnswer(status, **details) if isinstance(status, str) else _http(status, **details)


def _always(fault: Fault) -> Callable[..., Fault]:
    return lambda **_: fault


KINDS: dict[str, Callable[..., Fault]] = {
    "status": _status,
    "http": lambda status, message="", **_: _http(int(status), message),
    "garbage": _always(Garbage()),
    "reset": _always(Reset()),
    "reset_mid_body": _always(Half(1)),
    "stall": _always(Stall()),
    "stall_body": _always(Stall("answer")),
    "drop": _always(Drop("reset")),
    "silent": _always(Drop("stall")),
    "end": _always(End()),
    "end_sandbox": _always(End()),
}
"""The faults of emulators by the names that tests give them. A gRPC status is a word, an HTTP status a number."""
