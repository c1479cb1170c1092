"""Runs programs in a sandbox: a raw terminal of its own carries each one's stdin and stdout as a byte stream."""

import asyncio
import base64
import contextlib
import json
import re
import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import urlencode

import aiohttp
import anyio

from sandboxkit.errors import SandboxError, SandboxNotFoundError, SandboxStartError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.ambiguous import LAST_LOOK, AmbiguousError
from sandboxkit.providers.daytona._account import DaytonaAccount

_PIECE = 60 << 10
"""Bytes per message; Daytona accepts at most 64 KiB."""
_DIAGNOSTICS_BYTES = 2000
_CLOSE_SECONDS = 1.0
_STATUS = re.compile(rb"(\d+)\x1e")
# attrs generates the class's constructor, which pyright does not see.
_CLOSE_SOON = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]
_EXITS = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_NO_HOME = "/proc"
"""The HOME of login shells: nobody can create a profile file there, not even root."""
_UNSURE = (AmbiguousError, SandboxStartError)
"""Errors after which the terminal may exist."""
_LARGEST_MESSAGE = 1 << 20
_PAUSES = (0.1, 0.2, 0.4, 0.0)
"""Seconds to wait after each attempt to remove a terminal that may not exist yet."""

Socket: TypeAlias = "aiohttp.ClientWebSocketResponse[bool]"


class TerminalStream(ProgramStream):
    """A program's stdin and stdout on a terminal; `enter` makes the terminal 8-bit exact.

    Daytona disconnects a client that is 256 messages behind, so all output is read at once and
    buffered without a limit. The protocol spoken with the program has to limit it.
    """

    def __init__(self, sandbox_id: str, opened: Socket) -> None:
        self._sandbox_id, self._socket = sandbox_id, opened
        self._take: Callable[[bytes], None] = self._before
        self._mark, self._end = secrets.token_hex(16), secrets.token_hex(16)
        self._held = b""
        """Received bytes not handled yet, such as the beginning of a mark."""
        self._given = 0
        """How many bytes of `_held` have been passed on already."""
        self._received = bytearray()
        self._raw: bool | None = None
        """Whether `stty` could set the terminal to raw; None until the shell reports that."""
        self._status: int | None = None
        """The exit status of the terminal's shell, once the shell has ended."""
        self._why: str | None = None
        """Why the connection has ended; None while it works."""
        self._ended = self._closed = False
        self._changed = asyncio.Event()
        self._sending: anyio.CancelScope | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(
        cls,
        sandbox_id: str,
        connecting: Awaitable[Socket],
        argv: tuple[str, ...],
        *,
        patience: float,
    ) -> "TerminalStream":
        """Run a program on the new terminal that `connecting` returns.

        Raises SandboxStartError if the image's shell cannot run it, or AmbiguousError if the terminal
        breaks or its shell does not respond within `patience` seconds.
        """
        self = cls(sandbox_id, await connecting)
        try:
            await self._enter(patience)
            await self.send(begin(argv, self._mark, self._end))
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            if isinstance(error, anyio.BrokenResourceError):
                raise self._broken() from error
            raise
        return self

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._received:
            self._refuse_closed()
            if self._ended:
                raise anyio.EndOfStream
            if self._why is not None:
                raise anyio.BrokenResourceError(self._why)
            self._changed.clear()
            await self._changed.wait()
        self._refuse_closed()
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def send(self, item: bytes) -> None:
        self._refuse_closed()
        with anyio.CancelScope() as self._sending:
            for start in range(0, len(item), _PIECE):
                if self._ended or self._why is not None:
                    raise anyio.BrokenResourceError(self._why or "the program has ended")
                try:
                    await self._socket.send_bytes(item[start : start + _PIECE])
                except (aiohttp.ClientError, OSError) as error:
                    raise anyio.BrokenResourceError(str(error)) from error
        self._refuse_closed()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        if self._sending is not None:
            self._sending.cancel()
        with anyio.CancelScope(shield=True):
            self._listening.cancel()
            await asyncio.wait([self._listening])
            connection = self._socket.get_extra_info("socket")
            with anyio.move_on_after(_CLOSE_SECONDS) as scope:
                await self._socket.close()
            if scope.cancelled_caught and connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # unread data would keep it open for ever

    def _refuse_closed(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError

    async def _enter(self, patience: float) -> None:
        with anyio.move_on_after(patience):
            for wait in (patience / 2, patience):  # twice: a profile may have read the first
                await self.send(enter(self._mark))
                with anyio.move_on_after(wait):
                    while self._raw is None and self._why is None:
                        self._changed.clear()
                        await self._changed.wait()
                    break
        if self._raw is None and self._why is None:
            raise AmbiguousError(
                f"no shell of the sandbox's terminal ran a program within {patience:g} s; its output: "
                f"{self._words()}"
            )
        if self._raw is None:
            raise self._broken()
        if not self._raw:
            raise SandboxStartError(
                f"the sandbox's terminal cannot be set to raw: its image has no stty "
                f"({self._words()})"
            )

    def _broken(self) -> SandboxError:
        if self._status is not None and 0 <= self._status < 128:
            return SandboxStartError(
                f"the sandbox's login shell ended with status {self._status} before it ran a command: "
                f"/etc/profile or /etc/bash.bashrc ends it; its output: {self._words()}"
            )
        return AmbiguousError(f"daytona could not run a program: {self._why}")

    def _words(self) -> str:
        output = self.diagnostics.replace(enter(self._mark).rstrip(), b"")
        return repr(output.decode(errors="replace").strip()[-300:])

    async def _listen(self) -> None:
        try:
            while True:
                message = await self._socket.receive()
                match message.type:
                    case aiohttp.WSMsgType.BINARY:
                        self._take(message.data)
                    case aiohttp.WSMsgType.TEXT:
                        self._control(message.data)
                    case aiohttp.WSMsgType.CLOSE:
                        self._control(message.extra or "")
                        self._why = f"Daytona closed it ({message.data} {message.extra or ''})"
                        return
                    case _:
                        self._why = str(self._socket.exception() or "the connection broke")
                        return
                self._changed.set()
        finally:
            self._why = self._why or "it is closed"
            self._changed.set()

    def _control(self, text: str) -> None:
        try:
            reply = json.loads(text)
        except ValueError:
            return
        if not isinstance(reply, dict):
            return
        if reply.get("status") == "error":
            self._why = f"it says {reply.get('error')}"
        status = reply.get("exitCode")
        if isinstance(status, int):
            self._status = status

    def _before(self, data: bytes) -> None:
        """Handle output of the profiles and the shell, up to the mark."""
        self._held += data
        before, mark, after = self._held.partition(entered(self._mark))
        self.diagnostics = before[-_DIAGNOSTICS_BYTES:]
        if not mark:
            self._held = self._held[-_DIAGNOSTICS_BYTES:]
        elif found := _STATUS.match(after):
            self._raw = int(found[1]) == 0
            self._held, self._take = b"", self._program
            self._program(after[found.end() :])

    def _program(self, data: bytes) -> None:
        """Handle the program's output, up to the trailer."""
        mark, _ = trailer(self._end)
        data, given = self._held + data, self._given
        at = data.find(mark)
        if at >= 0:
            self._held, self._take = b"", self._after
            self._after(data[at + len(mark) :])
        else:
            at = data.rfind(mark[:1], max(0, len(data) - len(mark) + 1))
            if at < 0 or not mark.startswith(data[at:]):
                at = len(data)
            self._held, self._given = data[at:], 0
            if at == len(data) - 1:  # pass on one byte: it may be all the output for now
                self._given, at = 1, len(data)
        self._received += data[given:at]

    def _after(self, data: bytes) -> None:
        """Handle the trailer, which has the end of the program's stderr."""
        _, end = trailer(self._end)
        self._held += data
        output, mark, _ = self._held.partition(end)
        if mark:
            self.diagnostics, self._ended = output, True
            self._take = lambda data: None


class DaytonaTerminals:
    """Opens a sandbox's terminals."""

    def __init__(self, account: DaytonaAccount, sandbox_id: str, proxy: str) -> None:
        self._account, self._sandbox_id = account, sandbox_id
        self._url = f"{proxy.rstrip('/')}/{sandbox_id}"

    async def run(self, argv: tuple[str, ...]) -> TerminalStream:
        """Run a program on a new terminal, which is removed if that fails or is cancelled.

        Raises what `DaytonaAccount.call` and `TerminalStream.open` raise.
        """
        name = f"sandboxkit-{secrets.token_hex(8)}"
        try:
            return await TerminalStream.open(
                self._sandbox_id, self._connected(name), argv, patience=self._account.silence
            )
        except BaseException as error:
            if not isinstance(error, SandboxError) or isinstance(error, _UNSURE):
                await self._remove(name)
            raise

    async def _connected(self, name: str) -> Socket:
        """Open a new terminal. When cancelled, first wait up to 2 s for it: a terminal can be removed
        only once it exists."""
        making = asyncio.create_task(self._connect(name))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([making], timeout=LAST_LOOK)
                making.cancel()
                await asyncio.wait([making])
                if not making.cancelled() and making.exception() is None:
                    await making.result().close()
            raise

    async def _connect(self, name: str) -> Socket:
        envs = base64.urlsafe_b64encode(json.dumps({"HOME": _NO_HOME}).encode()).decode()
        query = {"id": name, "cols": 80, "rows": 24, "cwd": "/"}
        url = f"{self._url.replace('http', 'ws', 1)}/process/pty/create-connect?{urlencode(query)}"
        connecting = self._account.http().ws_connect(
            url,
            headers=self._account.headers(),
            protocols=(_EXITS, _ENVS + envs.rstrip("=")),
            timeout=_CLOSE_SOON,
            max_msg_size=_LARGEST_MESSAGE,
        )
        return await self._account.bounded(
            connecting, what="run a program", sandbox_id=self._sandbox_id
        )

    async def _remove(self, name: str) -> None:
        """Remove a terminal on which no program runs yet, and end its processes.

        A missing terminal is looked for again, because an abandoned call may create it late.
        """
        with anyio.move_on_after(LAST_LOOK, shield=True):
            for pause in _PAUSES:
                try:
                    await self._account.bounded(
                        self._account.toolbox(self._url).delete_pty_session(name),
                        what="remove a terminal",
                        sandbox_id=self._sandbox_id,
                    )
                except SandboxNotFoundError:
                    await anyio.sleep(pause)
                except SandboxError:
                    return  # Daytona cannot be reached; the terminal ends with its sandbox
                else:
                    return


_ENTER = (
    " unset HISTFILE; \\exec /bin/sh -c 'case $PATH in */usr/bin*) ;; *)"
    " PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH;; esac;"
    ' stty raw -echo min 0 time 255; printf "\\036%s%s:%s\\036" {first} {second} $?;'
    " while read -r line; do case $line in *{first}{second}) break;; esac; done;"
    ' read -r size; eval "$(dd bs=1 count=$size 2>/dev/null)"\'\n'
)
# In braces, so that a script that arrived in part does not run. Output is lost if the shell ends right
# after it, so the shell sleeps at its end.
_BEGIN = """{{
stty min 1 time 0
unset HOME
eval "HOME=~$(id -un 2>/dev/null)"
case $HOME in /*) ;; *) HOME=/ ;; esac
export HOME
exec 3>&1
said=$({{ {program}; }} 2>&1 >&3 3>&- | tail -c 2000)
printf '\\036%s:%s\\036%s' {mark} "$said" {mark}
exec sleep 5
}}
"""


def enter(mark: str) -> bytes:
    """Return the line to type. The mark is split in it, so that its echo is no answer."""
    half = len(mark) // 2
    return _ENTER.format(first=mark[:half], second=mark[half:]).encode()


def entered(mark: str) -> bytes:
    """Return how the answer to `enter` begins; the status of `stty` and another \\036 follow."""
    return b"\x1e" + mark.encode() + b":"


def begin(argv: tuple[str, ...], mark: str, end: str) -> bytes:
    """Return the data that starts the program; its input follows, its output ends at `trailer(end)`."""
    script = _BEGIN.format(program=shlex.join(argv), mark=end).encode()
    return b"\n%s\n%d\n%s" % (mark.encode(), len(script), script)


def trailer(end: str) -> tuple[bytes, bytes]:
    """Return what precedes and follows the end of stderr, which is sent when the program has ended."""
    return b"\x1e" + end.encode() + b":", b"\x1e" + end.encode()
