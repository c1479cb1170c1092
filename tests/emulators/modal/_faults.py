"""Faults of Modal's servers: an error status, a proxy's error page, a broken or a silent connection."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2


@dataclass
class Rule:
    """One planned fault.

    `kind`: "status" (of gRPC: `status`, `message`, `retry_after`), "http" (a proxy answers with
    the HTTP status `status` and the page `message`), "garbage" (bytes that are no message),
    "reset" (the connection is aborted at once), "stall" (no response until the fault is cleared),
    "drop" (the work is done, then the connection is aborted instead of a response), "silent" (the
    work is done, but there is no response), "end" (all sandboxes end just before the response).
    """

    call: str
    kind: str
    skip: int = 0
    times: int = 1_000_000
    status: str | int = ""
    message: str = ""
    retry_after: float | None = None
    per_second: int = 0
    """Number of calls per second that pass without the fault."""
    passed: list[float] = field(default_factory=list)
    skip_replies: int = 0
    """Number of replies of a streaming call that still arrive."""
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    end_sandboxes: Callable[[], Awaitable[None]] | None = None

    def lets_through(self) -> bool:
        """Whether the next call may pass without the fault."""
        now = time.monotonic()
        self.passed = [each for each in self.passed if each > now - 1]
        if len(self.passed) < self.per_second:
            self.passed.append(now)
            return True
        return False

    async def before(self, stream: Any) -> bool:
        """Apply the fault before the call; return True if the call must not be executed."""
        if self.kind == "status":
            details = None
            if self.retry_after is not None:
                details = [api_pb2.RPCRetryPolicy(retry_after_secs=self.retry_after)]
            raise GRPCError(Status[str(self.status)], self.message, details)
        if self.kind == "http":
            page = self.message.encode()
            headers = [(":status", str(self.status)), ("content-type", "text/html")]
            await stream._stream.send_headers(headers)
            await stream._stream.send_data(page, end_stream=True)
            stream._send_trailing_metadata_done = True
            return True
        if self.kind == "reset":
            stream._stream._transport.abort()
            return True
        if self.kind == "stall":
            await self.cleared.wait()
        return False

    async def on_reply(self, stream: Any) -> bool:
        """Apply the fault before a reply; return True if the reply must not be sent."""
        if self.skip_replies:
            self.skip_replies -= 1
            return False
        if self.kind == "drop":
            stream._stream._transport.abort()
            return True
        if self.kind == "silent":
            await self.cleared.wait()
        if self.kind == "garbage":
            if not stream._send_initial_metadata_done:
                await stream.send_initial_metadata()
            await stream._stream.send_data(b"\0\0\0\0\x04\xff\xff\xff\xff")
            stream._send_message_done = True
            return True
        if self.kind == "end":
            assert self.end_sandboxes is not None
            await self.end_sandboxes()
        return False


class Faults:
    """The planned faults, in the order in which they apply."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._speaking = asyncio.Event()
        self._speaking.set()
        self.end_sandboxes: Callable[[], Awaitable[None]] | None = None

    def plan(self, **rule: Any) -> None:
        """Add a rule, with the arguments of `Rule`."""
        self._rules.append(Rule(**rule, end_sandboxes=self.end_sandboxes))

    def take(self, call: str) -> Rule | None:
        """Return the fault that applies to this call, if any, and count it."""
        for rule in self._rules:
            if rule.call in (call, "*"):
                if rule.skip:
                    rule.skip -= 1
                elif rule.lets_through():
                    pass
                elif rule.times:
                    rule.times -= 1
                    return rule
        return None

    def hush(self) -> None:
        """Stop sending replies, also on open streams; calls are still executed."""
        self._speaking.clear()

    async def may_speak(self) -> None:
        """Wait while replies are stopped by `hush`."""
        await self._speaking.wait()

    def clear(self) -> None:
        """Remove all faults; calls that they stall continue."""
        self._speaking.set()
        for rule in self._rules:
            rule.cleared.set()
        self._rules.clear()
