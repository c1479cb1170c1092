"""Runs programs in one sandbox by E2B's process service, with the SDK's generated client.

Requests select a process by the pid in its first event, not by a tag, because the daemon's search for a
tag stops at the first process with a different tag. The SDK's client of the service maps several HTTP statuses to
one code and drops the headers. This loses the difference between a refusal, after which nothing has run, and a
response after which the outcome is unknown, so proxies' responses are kept here. The client also uses the
protocol's binary form, because the SDK's JSON carries data as base64.
"""

import base64
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from connectrpc.code import Code
from connectrpc.codec import proto_binary_codec
from connectrpc.errors import ConnectError
from e2b import ConnectionConfig
from e2b.api import proxy_to_config
from e2b.api.client.types import Unset
from e2b.api.client_async import get_pyqwest_transport
from e2b.envd.client_shared import ENVD_RPC_COMPRESSION
from e2b.envd.interceptors import build_interceptors
from e2b.envd.process import process_pb as pb
from e2b.envd.process.process_connect import ProcessClient
from protobuf import Oneof
from pyqwest import Client, Request, Response, Transport

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.ambiguous import LAST_LOOK
from sandboxkit.providers._hosted.pipe import Endings
from sandboxkit.providers.e2b._account import E2BAccount
from sandboxkit.providers.e2b._answers import of_daemon, of_proxy
from sandboxkit.providers.e2b._spec import check_version

Events = AsyncGenerator[pb.StartResponse, None]

USER = "root"
"""The user as which sandboxkit's own programs run."""
KEEP_ALIVE = 20
"""Seconds between keepalives on an idle stream. E2B's edge drops a stream that is idle for 610 s; AgentENV's
proxy drops a request whose body is idle for 30 s."""
_PORT = "49983"
_KILL = pb.Signal.SIGKILL
_LONGEST = 1 << 16
_CODES = frozenset(code.value for code in Code)


class Machine:
    """A client of one running sandbox's daemon."""

    def __init__(
        self,
        account: E2BAccount,
        endings: Endings,
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
        self._client = _process_client(self._url, config)
        self.is_deleted = False
        """Whether the sandbox is being deleted, which ends its programs without further requests."""
        self.endings = endings
        self.account = account
        self.response_seconds = account.silence
        """How long (s) the daemon may take to respond."""
        self.follow_up_seconds = min(LAST_LOOK, account.timeout)
        """How long (s) the daemon may take for a follow-up call after a silence."""

    def address(self, port: int) -> tuple[str, dict[str, str]]:
        """Return the address at which E2B's proxy forwards to a port of the sandbox, and the headers for that."""
        if self.account.sandbox_url:
            return self._url, {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)}
        return f"https://{self._config.get_host(self.id, self._domain, port)}", {}

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
        return await self.account.bounded(
            _upload(self._url, self._config, path, data, USER),
            what="upload a file",
            seconds=self.account.timeout,
        )

    def translated(self, error: ConnectError, what: str) -> SandboxError:
        """Convert an error of the daemon, or of a proxy in front of it, to sandboxkit's error."""
        cause = error.__cause__
        if isinstance(cause, ProxyResponseError):
            return of_proxy(cause.status, cause.headers, cause.body, what=what, sandbox_id=self.id)
        return of_daemon(error, what=what, sandbox_id=self.id)


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


@dataclass
class ProxyResponseError(Exception):
    """An HTTP error response from a proxy in front of the daemon: its body has no error code of the daemon.

    It is the `__cause__` of the ConnectError that the client raises.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _CheckedTransport:
    """A transport that raises ProxyResponseError for error responses that are not the daemon's."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def execute(self, request: Request) -> Response:
        response = await self._inner.execute(request)
        if response.status < 300:
            return response
        body = bytearray()
        async for chunk in response.content:
            body += bytes(chunk)
            if len(body) > _LONGEST:
                break
        if _is_the_daemons(body):
            return Response(status=response.status, headers=response.headers, content=bytes(body))
        headers = {name.lower(): value for name, value in response.headers.items()}
        raise ProxyResponseError(response.status, headers, bytes(body))


def _process_client(url: str, config: ConnectionConfig) -> ProcessClient:
    """Return a client of the process service at `url`; it retries only requests that were never sent."""
    return ProcessClient(
        url,
        codec=proto_binary_codec(),
        interceptors=build_interceptors(config, url),
        http_client=Client(_CheckedTransport(_transport(config))),
        **ENVD_RPC_COMPRESSION,
    )


async def _upload(url: str, config: ConnectionConfig, path: str, data: bytes, user: str) -> int:
    """Write a file as `user` by the daemon's HTTP route; return the HTTP status of the response.

    Raises the transport's errors if the connection cannot be made or breaks.
    """
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{path}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    query: dict[str, str | None] = {"path": path, "username": user}
    response = await Client(_transport(config)).post(
        f"{url}/files",
        params=query,
        headers={
            **config.sandbox_headers,
            "content-type": f"multipart/form-data; boundary={boundary}",
        },
        content=head.encode() + data + f"\r\n--{boundary}--\r\n".encode(),
    )
    return response.status


# Any: the SDK's transport of its own kind.
def _transport(config: ConnectionConfig) -> Any:
    return get_pyqwest_transport(proxy_to_config(config.proxy), http_version=config.http_version)


def _is_the_daemons(body: bytes | bytearray) -> bool:
    try:
        reply = json.loads(body)
    except ValueError:
        return False
    return isinstance(reply, dict) and reply.get("code") in _CODES
