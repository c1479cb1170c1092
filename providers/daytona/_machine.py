"""The way into one sandbox: Daytona's toolbox, for terminals and for our own scripts."""

import math
import shlex
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import aiohttp
import anyio
from daytona_toolbox_api_client_async import ExecuteRequest, PtyResizeRequest, UploadedFile

from sandboxkit.errors import ProviderUnavailableError, SandboxNotFoundError
from sandboxkit.providers._hosted.command import kill_argv
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError
from sandboxkit.providers._hosted.kept import orders
from sandboxkit.providers._hosted.kept.channel import Channel
from sandboxkit.providers._hosted.kept.lines import Line, LineEnded, Lines
from sandboxkit.providers._hosted.killing import make_sure
from sandboxkit.providers.daytona._account import NAME, Account, said, status_error, translated
from sandboxkit.providers.daytona._scripts import ENTER
from sandboxkit.providers.daytona._terminal import Terminal
from sandboxkit.types import PtySize

__all__ = ["Machine"]

_LARGEST_SIDE = 1000
# The class is made by attrs, whose constructor pyright does not see.
_CLOSE_SOON = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]
_UNLIMITED = aiohttp.ClientTimeout(total=None)
_EXITS = "X-Daytona-Pty-Exit-Control"
_HEARS_WITHIN = 2.0
"""Seconds that a kept shell may take to answer, before a new one is used."""
_OUTPUT_WINDOW = 8, 16384
"""Pieces of output, and their size, before a word of ours: Daytona cuts off a slow reader."""
_ANY_SIZE = PtySize(rows=24, cols=80)


class Machine:
    """A running sandbox; its lines are terminals."""

    provider = NAME

    def __init__(self, account: Account, sandbox_id: str, *, proxy: str, user: str | None) -> None:
        self.id, self.user, self.timeout = sandbox_id, user, account.timeout
        self.lines = Lines(min(_HEARS_WITHIN, account.timeout / 4), briefly=2.0)
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

    async def kill(self, mark: str, reason: BaseException) -> None:
        """See `kept.Host`."""

        async def kill() -> None:
            status, said = await self.run_script(kill_argv(mark), "kill a command")
            if status:
                raise ProviderUnavailableError(
                    f"daytona could not kill a command: status {status} {said[:200]}",
                    provider=NAME,
                    sandbox_id=self.id,
                )

        await make_sure(kill(), reason)

    async def resize(self, mark: str, size: PtySize) -> None:
        """See `kept.Host`; a terminal that has ended is no error."""
        request = PtyResizeRequest(cols=_side(size.cols), rows=_side(size.rows))
        try:
            await self._account.call(
                self._api.resize_pty_session(_name(mark), request),
                what="resize a terminal",
                sandbox_id=self.id,
            )
        except SandboxNotFoundError:
            pass

    async def open(self, mark: str, pty: PtySize | None) -> Line:
        """See `kept.Host`: a login shell on a terminal of its own, which goes on when nobody reads."""
        size = pty or _ANY_SIZE
        query = {"id": _name(mark), "cols": _side(size.cols), "rows": _side(size.rows), "cwd": "/"}
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
        return Terminal(self.id, socket)

    async def enter(self, line: Line, mark: str) -> bytes:
        """See `kept.Host`: put a shell of ours in the place of the login shell."""
        half = len(mark) // 2
        await line.write(ENTER.format(first=mark[:half], second=mark[half:]).encode())
        channel, ready = Channel(mark), False
        try:
            while not ready:
                ready = ("record", b"") in list(channel.feed((await line.read())[1]))
        except LineEnded as end:
            raise ProviderUnavailableError(
                f"the sandbox's shell ended with status {end.status} before the command",
                provider=NAME,
                sandbox_id=self.id,
            ) from end
        return orders.sized(orders.serve(*_OUTPUT_WINDOW, apart=False))

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


def _name(mark: str) -> str:
    # Only the first half: the whole mark is in no other process than the command's.
    return f"sandboxkit-{mark[:8]}"


def _side(characters: int) -> int:
    return max(1, min(_LARGEST_SIDE, characters))
