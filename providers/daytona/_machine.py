"""The way into one sandbox: Daytona's toolbox, for terminals and for our own scripts."""

import json
import math
import shlex
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import aiohttp
import anyio
from daytona_toolbox_api_client_async import ExecuteRequest, PtyResizeRequest, UploadedFile

from sandboxkit.errors import ProviderUnavailableError, SandboxNotFoundError
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError
from sandboxkit.providers.daytona._account import NAME, Account, said, status_error, translated
from sandboxkit.types import PtySize

__all__ = ["Machine", "Terminal", "TerminalEnded"]

_LARGEST_SIDE = 1000
_PIECE = 32768
"""Daytona takes messages of at most 64 KiB."""
# The class is made by attrs, whose constructor pyright does not see.
_CLOSE_SOON = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]
_UNLIMITED = aiohttp.ClientTimeout(total=None)
_EXITS = "X-Daytona-Pty-Exit-Control"


class TerminalEnded(Exception):
    """The process on a terminal has ended; `status` is what Daytona says of it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Machine:
    """A running sandbox."""

    def __init__(self, account: Account, sandbox_id: str, *, proxy: str, user: str | None) -> None:
        self.id, self.user, self.timeout = sandbox_id, user, account.timeout
        self._account = account
        self._url = f"{proxy.rstrip('/')}/{sandbox_id}"
        self._api = account.toolbox(self._url)

    async def run_script(self, argv: tuple[str, ...], what: str) -> tuple[int, str]:
        """Run one of our own scripts to its end; return its exit status and its output."""
        request = ExecuteRequest(
            # Daytona gives the line to a shell's standard input.
            command="exec " + shlex.join(argv),
            cwd="/",
            timeout=math.ceil(self.timeout),
        )
        answer = await self._account.call(
            self._api.execute_command(request), what=what, sandbox_id=self.id
        )
        if answer.exit_code is None:
            raise OutcomeUnknownError(
                f"daytona did not say how it went to {what}", provider=NAME, sandbox_id=self.id
            )
        return answer.exit_code, answer.result

    async def resize(self, terminal: str, size: PtySize) -> None:
        """Tell a terminal its size; one that has ended is no error."""
        request = PtyResizeRequest(cols=_side(size.cols), rows=_side(size.rows))
        try:
            await self._account.call(
                self._api.resize_pty_session(terminal, request),
                what="resize a terminal",
                sandbox_id=self.id,
            )
        except SandboxNotFoundError:
            pass

    async def terminal(self, name: str, size: PtySize) -> "Terminal":
        """Start a login shell on a terminal of its own, which goes on when nobody reads."""
        query = {"id": name, "cols": _side(size.cols), "rows": _side(size.rows), "cwd": "/"}
        url = f"{self._url.replace('http', 'ws', 1)}/process/pty/create-connect?{urlencode(query)}"
        connecting = self._account.http().ws_connect(
            url,
            headers=self._account.headers(),
            protocols=(_EXITS,),
            autoping=False,
            timeout=_CLOSE_SOON,
            max_msg_size=0,
        )
        socket = await self._account.call(connecting, what="run a command", sandbox_id=self.id)
        return Terminal(self, socket)

    async def upload(self, path: str, data: AsyncIterable[bytes]) -> None:
        """Write a file; as long as pieces are taken, it may last."""
        with self._moving("upload a file") as scope:

            async def pieces() -> AsyncIterator[bytes]:
                async for piece in data:
                    scope.deadline = anyio.current_time() + self.timeout
                    yield piece
                scope.deadline = anyio.current_time() + self.timeout

            headers = {**self._account.headers(), "Content-Type": "application/octet-stream"}
            async with self._account.http().post(
                f"{self._url}/files/upload-v2",
                params={"path": path},
                data=pieces(),
                headers=headers,
                timeout=_UNLIMITED,
            ) as answer:
                await self._check(answer, "upload a file")
                UploadedFile.model_validate_json(await answer.text())

    async def download(self, path: str, most: int) -> bytes:
        """Read a file's first `most` bytes; as long as pieces come, it may last."""
        data = bytearray()
        with self._moving("download a file") as scope:
            async with self._account.http().get(
                f"{self._url}/files/download",
                params={"path": path},
                headers=self._account.headers(),
                timeout=_UNLIMITED,
            ) as answer:
                await self._check(answer, "download a file")
                async for piece in answer.content.iter_any():
                    scope.deadline = anyio.current_time() + self.timeout
                    data += piece
                    if len(data) >= most:
                        break
        return bytes(data[:most])

    @contextmanager
    def _moving(self, what: str) -> Iterator[anyio.CancelScope]:
        """The errors of a transfer, and its deadline, which whoever sees progress puts off."""
        try:
            with anyio.fail_after(self.timeout) as scope, translated(what, self.id):
                yield scope
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"daytona did not {what} for {self.timeout:g} s; check the network",
                provider=NAME,
                sandbox_id=self.id,
            ) from error

    async def _check(self, answer: aiohttp.ClientResponse, what: str) -> None:
        if answer.status >= 400:
            headers = {k.lower(): v for k, v in answer.headers.items()}
            message = said(await answer.text())
            raise status_error(answer.status, message, headers, what=what, sandbox_id=self.id)


class Terminal:
    """The connection to a terminal."""

    def __init__(self, machine: Machine, socket: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._machine, self._socket = machine, socket

    async def close(self) -> None:
        """Close the connection; the process on the terminal goes on."""
        await self._socket.close()

    async def ping(self) -> None:
        """Ask for a sign of life, which `read` returns as b""."""
        try:
            await self._socket.ping()
        except (aiohttp.ClientError, OSError):
            pass  # reading says it better

    async def write(self, data: bytes) -> None:
        """Write, as fast as the connection takes it; nothing once the terminal has ended."""
        try:
            for start in range(0, len(data), _PIECE):
                await self._socket.send_bytes(data[start : start + _PIECE])
        except (aiohttp.ClientError, OSError):
            pass

    async def read(self) -> bytes:
        """Return what the terminal says next; raises TerminalEnded or a typed error."""
        message = await self._socket.receive()
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                data: bytes = message.data
                return data
            case aiohttp.WSMsgType.TEXT:
                self._control(message.data)
                return b""
            case aiohttp.WSMsgType.PING:
                await self._socket.pong(message.data)
                return b""
            case aiohttp.WSMsgType.PONG:
                return b""
            case aiohttp.WSMsgType.CLOSE:
                self._control(message.extra or "")
                reason = f"Daytona closed it ({message.data} {message.extra or ''})"
            case _:
                reason = str(self._socket.exception() or "it broke")
        raise OutcomeUnknownError(
            f"the connection to a command was lost: {reason}; run it again",
            provider=NAME,
            sandbox_id=self._machine.id,
        )

    def _control(self, text: str) -> None:
        try:
            said = json.loads(text)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        if said.get("status") == "error":
            raise ProviderUnavailableError(
                f"daytona could not run a command: {said.get('error')}",
                provider=NAME,
                sandbox_id=self._machine.id,
            )
        status = said.get("exitCode")
        if isinstance(status, int):
            raise TerminalEnded(status)


def _side(characters: int) -> int:
    return max(1, min(_LARGEST_SIDE, characters))
