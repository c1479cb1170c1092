"""Runs programs in one sandbox by E2B's process service, with the SDK's generated client.

Requests select a process by the pid in its first event, not by a tag, because the daemon's search for a
tag stops at the first process with a different tag.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, Literal, cast

from connectrpc.errors import ConnectError
from e2b.api.client.types import Unset
from e2b.envd.process import process_pb as pb
from protobuf import Oneof
from pyqwest import ReadError, RemoteProtocolError, WriteError

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.ambiguous import LAST_LOOK, SILENCE, bounded, no_answer
from sandboxkit.providers.e2b._account import E2BAccount
from sandboxkit.providers.e2b._answers import NAME, of_daemon, of_proxy
from sandboxkit.providers.e2b._spec import check_version
from sandboxkit.providers.e2b._wire import ProxyResponseError, process_client, upload

Events = AsyncGenerator[pb.StartResponse, None]

USER = "root"
"""The user as which sandboxkit's own programs run."""
KEEP_ALIVE = 20
"""Seconds between keepalives on an idle stream. E2B's edge drops a stream that is idle for 610 s; AgentENV's
proxy drops a request whose body is idle for 30 s."""
_PORT = "49983"
_KILL = pb.Signal.SIGKILL


class Machine:
    """A client of one running sandbox's daemon."""

    def __init__(
        self,
        account: E2BAccount,
        sandbox_id: str,
        *,
        domain: str | Unset | None,
        token: str | Unset | None,
        version: str,
    ) -> None:
        """`domain` and `token` are E2B's values for the sandbox, `version` that of its daemon.

        Raises ConfigurationError if the daemon is too old.
        """
        check_version(version, sandbox_id)
        self.id = sandbox_id
        headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": _PORT}
        if token:
            headers["X-Access-Token"] = token
        config = account.config(headers)
        self._config, self._domain = config, domain or config.domain
        self._url = config.get_sandbox_url(sandbox_id, self._domain)
        self._client = process_client(self._url, config)
        self.is_deleted = False
        """Whether the sandbox is being deleted, which ends its programs without further requests."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._account = account
        self.response_seconds = min(SILENCE, account.timeout)
        """How long (s) the daemon may take to respond."""
        self.follow_up_seconds = min(LAST_LOOK, account.timeout)
        """How long (s) the daemon may take for a follow-up call after a silence."""

    def address(self, port: int) -> tuple[str, dict[str, str]]:
        """Return the address at which E2B's proxy forwards to a port of the sandbox, and the headers for that."""
        if self._account.sandbox_url:
            return self._url, {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)}
        return f"https://{self._config.get_host(self.id, self._domain, port)}", {}

    @property
    def streams(self) -> bool | None:
        """Whether streamed input reaches programs; None if unknown. All sandboxes of the account share it."""
        return self._account.streams

    @streams.setter
    def streams(self, streams: bool | None) -> None:
        self._account.streams = streams

    def start(self, argv: tuple[str, ...]) -> Events:
        """Start a program as root with an open stdin, and return its events.

        The program keeps running if the events are no longer read.
        """
        program = pb.ProcessConfig(cmd=argv[0], args=list(argv[1:]), cwd="/")
        headers = {
            "Keepalive-Ping-Interval": str(KEEP_ALIVE),
            "Authorization": "Basic " + base64.b64encode(f"{USER}:".encode()).decode(),
        }
        request = pb.StartRequest(process=program, stdin=True)
        # No deadline, because the daemon kills the program when one passes.
        return cast(Events, self._client.start(request, headers=headers, timeout_ms=None))

    async def stream(self, pid: int, pieces: AsyncIterator[bytes]) -> None:
        """Write `pieces` to a program's stdin in one streaming call; an empty one is a keepalive.

        This method and the ones below raise ConnectError.
        """
        await self._client.stream_input(_requests(pid, pieces), timeout_ms=None)

    async def write(self, pid: int, data: bytes) -> None:
        """Write to a program's stdin; return once the data is in its pipe."""
        await self._client.send_input(
            pb.SendInputRequest(process=_selected(pid), input=_piped(data))
        )

    async def close_stdin(self, pid: int) -> None:
        """Close a program's stdin."""
        await self._client.close_stdin(pb.CloseStdinRequest(process=_selected(pid)))

    async def kill(self, pid: int) -> None:
        """Kill a program."""
        await self._client.send_signal(pb.SendSignalRequest(process=_selected(pid), signal=_KILL))

    async def upload(self, path: str, data: bytes) -> int:
        """Write a file as root by one request; return the HTTP status of the response.

        Without a response, raises AmbiguousError if the daemon may have received the file, else
        ProviderUnavailableError.
        """
        what = "upload a file"
        try:
            return await bounded(
                upload(self._url, self._config, path, data, USER),
                self._account.timeout,
                provider=NAME,
                what=what,
            )
        except (OSError, ReadError, WriteError, RemoteProtocolError) as error:
            raise no_answer(
                error,
                (ConnectionError,),
                (OSError, ReadError, WriteError, RemoteProtocolError),
                provider=NAME,
                what=what,
                addresses="E2B_DOMAIN, E2B_SANDBOX_URL",
            ) from error

    def translated(self, error: ConnectError, what: str) -> SandboxError:
        """Convert an error of the daemon, or of a proxy in front of it, to sandboxkit's error."""
        cause = error.__cause__
        if isinstance(cause, ProxyResponseError):
            return of_proxy(cause.status, cause.headers, cause.body, what=what, sandbox_id=self.id)
        return of_daemon(error, what=what, sandbox_id=self.id)

    def leave(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run `ending`, which ends a program, in the background; `aclose` waits for it."""
        task = asyncio.create_task(ending)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def aclose(self, *, ended: bool = False) -> None:
        """Wait for the coroutines passed to `leave`; if the sandbox has `ended`, cancel them first."""
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
