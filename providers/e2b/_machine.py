"""The way into one sandbox: E2B's process service, through the client that the SDK generates.

A process is known by the pid that its first event tells, and by nothing else: the daemon that looks
for a tag stops at the first process with another one.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, Literal, cast

from connectrpc.errors import ConnectError
from e2b.api.client.types import Unset
from e2b.envd.process import process_pb as pb
from protobuf import Oneof

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.deadline import LAST_LOOK, SILENCE
from sandboxkit.providers.e2b._account import Account
from sandboxkit.providers.e2b._answers import of_daemon, of_proxy
from sandboxkit.providers.e2b._spec import check_version
from sandboxkit.providers.e2b._wire import AnsweredError, process_client

__all__ = ["KEEP_ALIVE", "USER", "Events", "Machine"]

Events = AsyncGenerator[pb.StartResponse, None]

USER = "root"
"""Whom our own programs run as."""
KEEP_ALIVE = 50
"""Seconds between signs of life on a stream that carries nothing, as the SDK has them; E2B's edge
drops what is idle for 610 s, and what stands before it may have less patience."""
_PORT = "49983"
_KILL = pb.Signal.SIGKILL


class Machine:
    """A running sandbox."""

    def __init__(
        self,
        account: Account,
        sandbox_id: str,
        *,
        domain: str | Unset | None,
        token: str | Unset | None,
        version: str,
    ) -> None:
        """`version` is the daemon's. Raises ConfigurationError for one that is too old."""
        check_version(version, sandbox_id)
        self.id = sandbox_id
        headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": _PORT}
        if token:
            headers["X-Access-Token"] = token
        config = account.config(headers)
        self._client = process_client(
            config.get_sandbox_url(sandbox_id, domain or config.domain), config
        )
        self._leaving: set[asyncio.Task[None]] = set()
        self.streams: bool | None = None
        """Whether a streamed input reaches its program on the way to this sandbox; None: not known."""
        self.answer = min(SILENCE, account.timeout)
        """Seconds that the daemon may take to answer."""
        self.look = min(LAST_LOOK, account.timeout)
        """The same for what is asked after that."""

    def start(self, argv: tuple[str, ...]) -> Events:
        """Start a program as root with an input; its events. It goes on when nobody takes them."""
        program = pb.ProcessConfig(cmd=argv[0], args=list(argv[1:]), cwd="/")
        headers = {
            "Keepalive-Ping-Interval": str(KEEP_ALIVE),
            "Authorization": "Basic " + base64.b64encode(f"{USER}:".encode()).decode(),
        }
        request = pb.StartRequest(process=program, stdin=True)
        # A deadline would be the program's, which the daemon kills then.
        return cast(Events, self._client.start(request, headers=headers, timeout_ms=None))

    async def stream(self, pid: int, pieces: AsyncIterator[bytes]) -> None:
        """Write to a program's input until there are no more pieces; an empty one is a sign of life.

        This and the others raise ConnectError.
        """
        await self._client.stream_input(_requests(pid, pieces), timeout_ms=None)

    async def write(self, pid: int, data: bytes) -> None:
        """Write to a program's input, as fast as it reads."""
        await self._client.send_input(
            pb.SendInputRequest(process=_selected(pid), input=_piped(data))
        )

    async def close_stdin(self, pid: int) -> None:
        """End a program's input."""
        await self._client.close_stdin(pb.CloseStdinRequest(process=_selected(pid)))

    async def kill(self, pid: int) -> None:
        """Kill a program."""
        await self._client.send_signal(pb.SendSignalRequest(process=_selected(pid), signal=_KILL))

    def translated(self, error: ConnectError, what: str) -> SandboxError:
        """What the daemon, or what stands before it, says, as sandboxkit's error."""
        cause = error.__cause__
        if isinstance(cause, AnsweredError):
            return of_proxy(cause.status, cause.headers, cause.body, what=what, sandbox_id=self.id)
        return of_daemon(error, what=what, sandbox_id=self.id)

    def leave(self, ending: Coroutine[Any, Any, None]) -> None:
        """Let the end of a program take its time, beside whoever has no more use for it."""
        task = asyncio.create_task(ending)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def aclose(self, *, ended: bool = False) -> None:
        """Wait for the programs that are left, or with `ended` leave them to the sandbox's end."""
        if ended:
            for task in self._leaving:
                task.cancel()
        if self._leaving:
            await asyncio.wait(set(self._leaving))


async def _requests(pid: int, pieces: AsyncIterator[bytes]) -> AsyncIterator[pb.StreamInputRequest]:
    start: Oneof[Literal["start"], pb.StreamInputRequest.StartEvent] = Oneof(
        "start", pb.StreamInputRequest.StartEvent(process=_selected(pid))
    )
    yield pb.StreamInputRequest(event=start)
    alive: Oneof[Literal["keepalive"], pb.StreamInputRequest.KeepAlive] = Oneof(
        "keepalive", pb.StreamInputRequest.KeepAlive()
    )
    async for piece in pieces:
        data: Oneof[Literal["data"], pb.StreamInputRequest.DataEvent] = Oneof(
            "data", pb.StreamInputRequest.DataEvent(input=_piped(piece))
        )
        yield pb.StreamInputRequest(event=data if piece else alive)


def _selected(pid: int) -> pb.ProcessSelector:
    selected: Oneof[Literal["pid"], int] = Oneof("pid", pid)
    return pb.ProcessSelector(selector=selected)


def _piped(data: bytes) -> pb.ProcessInput:
    piped: Oneof[Literal["stdin"], bytes] = Oneof("stdin", data)
    return pb.ProcessInput(input=piped)
