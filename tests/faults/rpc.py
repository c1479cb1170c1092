"""Planned faults of an emulator's gRPC server, before a call and before each of its replies."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from tests.faults._plan import Drop, End, Garbage, HttpAnswer, Reset, RpcAnswer, Rule, Rules, Stall


class Faults(Rules):
    """The planned faults of calls, by the calls' names; "*" is for all of them."""

    def __init__(self) -> None:
        super().__init__(lambda call, name: name in (call, "*"))
        self._speaking = asyncio.Event()
        self._speaking.set()
        self.end_sandboxes: Callable[[], Awaitable[None]] | None = None

    def hush(self) -> None:
        """Stop sending replies, also on open streams; calls are still executed."""
        self._speaking.clear()

    def clear(self) -> None:
        self._speaking.set()
        super().clear()

    # Any: grpclib's streams, in both.
    async def before(self, rule: Rule, stream: Any) -> bool:
        """Apply the fault before the call; return True if the call must not be executed."""
        match rule.fault:
            case RpcAnswer(status, message, after):
                details = None
                if after is not None:
                    details = [api_pb2.RPCRetryPolicy(retry_after_secs=after)]
                raise GRPCError(Status[status], message, details)
            case HttpAnswer(status, body, headers):
                lines = [(":status", str(status)), *headers.items()]
                await stream._stream.send_headers(lines)
                await stream._stream.send_data(body, end_stream=True)
                stream._send_trailing_metadata_done = True
                return True
            case Reset():
                stream._stream._transport.abort()
                return True
            case Stall():
                await rule.cleared.wait()
        return False

    async def on_reply(self, rule: Rule | None, stream: Any) -> bool:
        """Wait while replies are stopped, apply the fault, and return True if the reply must not be sent."""
        await self._speaking.wait()
        if rule is None:
            return False
        if rule.skip_replies:
            rule.skip_replies -= 1
            return False
        match rule.fault:
            case Drop("reset"):
                stream._stream._transport.abort()
                return True
            case Drop():
                await rule.cleared.wait()
            case Garbage():
                if not stream._send_initial_metadata_done:
                    await stream.send_initial_metadata()
                await stream._stream.send_data(b"\0\0\0\0\x04\xff\xff\xff\xff")
                stream._send_message_done = True
                return True
            case End():
                assert self.end_sandboxes is not None
                await self.end_sandboxes()
        return False
