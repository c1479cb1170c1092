"""The way into one sandbox: E2B's process service, through the client that the SDK generates.

The SDK's `commands.run` takes a line for a login shell and gives text; the client underneath
takes an argv and gives bytes, in one and the same call.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Any, Literal, cast

import anyio
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.api.client.types import Unset
from e2b.envd.client_async import create_rpc_client
from e2b.envd.process import process_pb as pb
from e2b.envd.process.process_connect import ProcessClient
from protobuf import Oneof

from sandboxkit.errors import (
    AuthenticationError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError, bounded
from sandboxkit.providers.e2b._account import KEY_VARIABLE, NAME, Account
from sandboxkit.types import PtySize

__all__ = ["Events", "Machine"]

Events = AsyncGenerator[pb.StartResponse, None]

_ROOT = "root"
_PORT = "49983"
_LINGER_SECONDS = 0.1
"""How long E2B may take to say that a command has ended which has said so itself: then its
connection can be used again. Where a child holds an output it does not say so."""
_BROKEN = ("broken pipe", "closed", "not found")


class Machine:
    """A running sandbox."""

    def __init__(
        self,
        account: Account,
        sandbox_id: str,
        *,
        domain: str | Unset | None,
        token: str | Unset | None,
        user: str | None,
    ) -> None:
        self.id, self.user, self.timeout = sandbox_id, user, account.timeout
        headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": _PORT}
        if token:
            headers["X-Access-Token"] = token
        config = account.config(headers)
        url = config.get_sandbox_url(sandbox_id, domain or config.domain)
        self._client = create_rpc_client(ProcessClient, url, config)
        self._left: set[asyncio.Task[None]] = set()
        # Silence of three of these intervals means that the connection is dead.
        self.ping = max(1, int(account.timeout / 3))

    def start(
        self,
        argv: tuple[str, ...],
        *,
        tag: str,
        env: dict[str, str] | None = None,
        user: str | None = None,
        stdin: bool = False,
        pty: PtySize | None = None,
    ) -> Events:
        """Start a process and return its events; it goes on when nobody takes them."""
        request = pb.StartRequest(
            process=pb.ProcessConfig(
                cmd="/bin/sh" if argv[0] == "sh" else argv[0],
                args=list(argv[1:]),
                envs=env or {},
                cwd="/",
            ),
            tag=tag,
            stdin=stdin,
            pty=None if pty is None else _pty(pty),
        )
        headers = {"Keepalive-Ping-Interval": str(self.ping), **_as_user(user or self.user)}
        return cast(Events, self._client.start(request, headers=headers, timeout_ms=None))

    def leave(self, events: Events) -> None:
        """Take over the events of a process that are of no more interest."""
        task = asyncio.create_task(self._finish(events))
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def aclose(self) -> None:
        """Wait until no events are left."""
        if self._left:
            await asyncio.wait(self._left)

    async def _finish(self, events: Events) -> None:
        try:
            with anyio.move_on_after(_LINGER_SECONDS):
                async for _ in events:
                    pass
        except ConnectError:
            pass  # the command has ended, whatever is said now
        finally:
            await events.aclose()

    async def run_script(self, argv: tuple[str, ...], tag: str, what: str) -> None:
        """Run one of our own scripts as root, to its end, within the deadline."""

        async def run() -> int | None:
            events = self.start(argv, tag=tag, user=_ROOT)
            try:
                async for response in events:
                    event = response.event.event if response.event is not None else None
                    if event is not None and event.field == "end":
                        return event.value.exit_code
            except ConnectError as error:
                raise self.translated(error, what) from error
            finally:
                await events.aclose()
            return None

        status = await bounded(run(), self.timeout, provider=NAME, what=what, sandbox_id=self.id)
        if status != 0:
            raise ProviderUnavailableError(
                f"e2b could not {what}: the sandbox's shell ended with status {status}",
                provider=NAME,
                sandbox_id=self.id,
            )

    async def write(self, tag: str, data: bytes, *, terminal: bool) -> bool:
        """Write to a process's input, as fast as it reads; False when nobody reads it."""
        keys: Oneof[Literal["pty"], bytes] = Oneof("pty", data)
        piped: Oneof[Literal["stdin"], bytes] = Oneof("stdin", data)
        what = pb.ProcessInput(input=keys if terminal else piped)
        request = pb.SendInputRequest(process=_tagged(tag), input=what)
        return await self._tell(self._client.send_input(request), "write to a command")

    async def close_stdin(self, tag: str) -> bool:
        """End a process's input; False when it has none any more."""
        request = pb.CloseStdinRequest(process=_tagged(tag))
        return await self._tell(self._client.close_stdin(request), "end a command's input")

    async def resize(self, tag: str, size: PtySize) -> bool:
        """Tell a process's terminal its size; False when it has none any more."""
        request = pb.UpdateRequest(process=_tagged(tag), pty=_pty(size))
        return await self._tell(self._client.update(request), "resize a terminal")

    async def _tell(self, call: Any, what: str) -> bool:  # Any: a coroutine of any answer
        try:
            await call
        except ConnectError as error:
            gone = error.code in (Code.NOT_FOUND, Code.INTERNAL, Code.UNKNOWN)
            if gone and any(word in error.message.lower() for word in _BROKEN):
                return False
            raise self.translated(error, what) from error
        return True

    def translated(self, error: ConnectError, what: str, user: str | None = None) -> BaseException:
        """The error to raise; OutcomeUnknownError where the sandbox itself may have ended."""
        if isinstance(error.__cause__, asyncio.CancelledError):
            return error.__cause__  # connectrpc has made an error of our own cancellation
        message = error.message
        # Any: keywords of constructors that differ in others.
        where: dict[str, Any] = {"provider": NAME, "sandbox_id": self.id}
        if error.code is Code.UNAUTHENTICATED and "user" in message.lower():
            return ConfigurationError(f"user={(user or self.user)!r}: {message}", **where)
        if error.code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED):
            return AuthenticationError(
                f"e2b could not {what}: {message}; check {KEY_VARIABLE}", **where
            )
        if error.code is Code.UNAVAILABLE and "was not found" in message:
            return self.not_found()
        if error.code is Code.RESOURCE_EXHAUSTED:
            return ProviderUnavailableError(f"e2b could not {what}: {message}; slow down", **where)
        if error.code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION):
            return ConfigurationError(f"e2b could not {what}: {message}", **where)
        return OutcomeUnknownError(
            f"e2b could not {what}: {message or error.code.value}; try again", **where
        )

    def not_found(self) -> SandboxError:
        """The error for a sandbox that has ended."""
        return SandboxNotFoundError(
            f"no sandbox {self.id!r}; it may have ended", provider=NAME, sandbox_id=self.id
        )


def _tagged(tag: str) -> pb.ProcessSelector:
    selected: Oneof[Literal["tag"], str] = Oneof("tag", tag)
    return pb.ProcessSelector(selector=selected)


def _pty(size: PtySize) -> pb.PTY:
    return pb.PTY(size=pb.PTY.Size(rows=size.rows, cols=size.cols))


def _as_user(user: str | None) -> dict[str, str]:
    if user is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode()}
