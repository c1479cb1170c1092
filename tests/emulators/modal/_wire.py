"""Wraps all calls of the emulator: counts them, checks their credentials and their messages against the
vendor's definitions, and applies the planned faults."""

import asyncio
import base64
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpclib.const
import grpclib.server
from google.protobuf.message import Message  # type: ignore[import-untyped]  # no stubs
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from h2.exceptions import StreamClosedError

from tests.emulators.modal._boxes import Settings
from tests.faults._plan import Rule
from tests.faults.rpc import Faults

TOKEN_ID, TOKEN_SECRET = "ak-emulator", "as-emulator"
# Control plane calls whose name ends with this need a second, short-lived token.
_WITH_AUTH_TOKEN = "V2"


class Wire:
    """The calls, credentials, violations and planned faults of one emulator."""

    def __init__(self, faults: Faults, settings: Settings) -> None:
        self.requests: list[str] = []
        self.violations: list[str] = []
        self.faults, self._settings = faults, settings
        self._issued: set[str] = set()
        self.transports: weakref.WeakSet[Any] = weakref.WeakSet()

    def issue(self, lifetime: float = 1200.0) -> str:
        """Return a new token that expires after `lifetime` seconds by this server's clock."""
        claims = {"exp": time.time() + self._settings.clock_skew + lifetime, "n": len(self._issued)}
        parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
        token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
        self._issued.add(f"{token}.sig")
        return f"{token}.sig"

    def revoke(self) -> None:
        self._issued.clear()

    def cut(self) -> None:
        for transport in list(self.transports):
            transport.abort()

    def authorise(self, name: str, metadata: Any, *, router: bool) -> None:
        """Raise UNAUTHENTICATED for a call with wrong credentials."""
        if router:
            scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
            if scheme != "Bearer" or token not in self._issued:
                raise GRPCError(Status.UNAUTHENTICATED, "Invalid or expired task token")
            return
        given = metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")
        if given != (TOKEN_ID, TOKEN_SECRET):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")
        token = metadata.get("x-modal-auth-token")
        if name.endswith(_WITH_AUTH_TOKEN) and token not in self._issued:
            raise GRPCError(Status.UNAUTHENTICATED, "Invalid auth token")


class Checked:
    """A servicer for grpclib whose calls are checked. `router`: it is the worker's."""

    def __init__(self, wire: Wire, servicer: Any, *, router: bool) -> None:
        self._wire, self._servicer, self._router = wire, servicer, router

    def __mapping__(self) -> dict[str, grpclib.const.Handler]:
        return {
            path: handler._replace(func=self._checked(path.rpartition("/")[2], handler))
            for path, handler in self._servicer.__mapping__().items()
        }

    def _checked(self, name: str, handler: grpclib.const.Handler) -> Callable[[Any], Any]:
        one_reply = handler.cardinality is grpclib.const.Cardinality.UNARY_UNARY

        async def call(stream: Any) -> None:
            wire = self._wire
            wire.requests.append(name)
            wire.transports.add(stream._stream._transport)
            fault = wire.faults.take(name)
            checked = CheckedStream(stream, name, wire)
            try:
                if fault is not None and await wire.faults.before(fault, stream):
                    return
                wire.authorise(name, stream.metadata, router=self._router)
                checked.fault = fault
                if one_reply:  # the servicer's method is then a function of the request
                    request = await checked.recv_message()
                    await checked.send_message(await handler.func(request))
                else:
                    await handler.func(checked)
            except GRPCError as error:
                if error.status is Status.UNIMPLEMENTED:
                    wire.violations.append(f"{name}: the emulator does not know this call")
                raise
            except (asyncio.CancelledError, StreamClosedError):
                raise  # the client has ended the call, perhaps while the response was being sent
            except Exception as error:
                if not stream._stream._transport.is_closing():
                    wire.violations.append(f"{name}: {error!r}")
                raise

        return call


class CheckedStream:
    """One call's stream, whose messages are checked against the vendor's own classes."""

    def __init__(self, stream: Any, name: str, wire: Wire) -> None:
        self._stream, self._name, self._wire = stream, name, wire
        self.metadata = stream.metadata
        self.fault: Rule | None = None

    async def recv_message(self) -> Any:
        message = await self._stream.recv_message()
        if message is not None:
            for path in unknown_fields(message):
                self._wire.violations.append(f"{self._name}: unknown field {path}")
        return message

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.recv_message()) is not None:
            yield message

    async def send_message(self, message: Message) -> None:
        if not await self._wire.faults.on_reply(self.fault, self._stream):
            await self._stream.send_message(message)


def unknown_fields(message: Message, path: str = "") -> list[str]:
    """Return the paths of fields in a message that its class does not define."""
    found = [f"{path}#{field.field_number}" for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        items = value if not isinstance(value, Message) else [value]
        for item in items:
            found += unknown_fields(item, f"{path}.{field.name}")
    return found
