"""Faults as Modal's clients meet them: a status, a proxy's page, a broken or a silent connection."""

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
    "reset" (the connection breaks at once), "stall" (no answer until the fault is cleared),
    "drop" (the work is done, then the connection breaks in place of the answer), "silent" (the
    work is done, no answer), "end" (every sandbox ends just before the answer).
    """

    call: str
    kind: str
    skip: int = 0
    times: int = 1_000_000
    status: str | int = ""
    message: str = ""
    retry_after: float | None = None
    per_second: int = 0
    """So many calls a second are let through."""
    passed: list[float] = field(default_factory=list)
    skip_replies: int = 0
    """Replies of the call, if it has more than one, that still arrive."""
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    end_sandboxes: Callable[[], Awaitable[None]] | None = None

    def lets_through(self) -> bool:
        """Whether one more may pass now."""
        now = time.monotonic()
        self.passed = [each for each in self.passed if each > now - 1]
        if len(self.passed) < self.per_second:
            self.passed.append(now)
            return True
        return False

    async def before(self, stream: Any) -> bool:
        """Act before the call is looked at; True when that was all there is to it."""
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
        """Act in place of a reply; True when the reply is not to be sent."""
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
        """The fault that meets this call, if one does."""
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
        """Send nothing more, on streams under way neither; what is asked for is done."""
        self._speaking.clear()

    async def may_speak(self) -> None:
        """Return when it is not hushed."""
        await self._speaking.wait()

    def clear(self) -> None:
        """Forget all; what they hold up goes on."""
        self._speaking.set()
        for rule in self._rules:
            rule.cleared.set()
        self._rules.clear()
