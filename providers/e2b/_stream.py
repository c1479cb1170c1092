"""A byte stream to the stdin and stdout of one program in a sandbox.

Output arrives as events of the call that started the program. Input goes through one streaming call.
If a proxy does not forward streamed input, it goes through successive calls instead, each with all data
gathered so far. Concurrent calls would be faster, but the daemon does not keep their order. The daemon
also writes the input of such single calls to its log.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable

import anyio
from connectrpc.code import Code
from connectrpc.errors import ConnectError

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, SilenceError
from sandboxkit.providers._hosted.pipe import BytePipe
from sandboxkit.providers.e2b._machine import KEEP_ALIVE, Events, Machine, ProxyResponseError

_PIECE = 256 << 10
"""Maximum input (bytes) per message of a streaming call; the transport buffers up to 20 messages."""
_CALL = 1 << 20
"""Maximum input (bytes) per single call: a quarter of the default limit of this protocol's servers."""
_HELD = 1 << 20
"""Output (bytes) that is buffered for the receiver before back-pressure stops E2B and the program."""
_DIAGNOSTICS_BYTES = 2000
_LINGER_SECONDS = 1.0
"""How long (s) E2B may take to report a program's end after its input has failed."""
_FLUSH_SECONDS = 1.0
"""How long (s) a program may take to read the rest of its input and then exit."""
_WHAT = "start a program"


class E2BProgram(ProgramStream):
    """The stream of a program whose start was requested; closing the stream ends the program."""

    def __init__(self, machine: Machine, events: Events, *, streamed: bool) -> None:
        self.diagnostics = b""
        """The last output on stderr, or else how the program ended."""
        self.refused: ConnectError | None = None
        """The error with which sending input failed; None if it did not fail."""
        self._machine, self._streamed = machine, streamed
        self._input, self._output = BytePipe(_CALL), BytePipe(_HELD)
        self._pid = 0
        self._decided = anyio.Event()
        self._ended = self._closed = False
        self._first_input: float | None = None
        """When the first input was sent (monotonic seconds)."""
        self._has_output = False
        """Whether output has arrived since then."""
        self._broken: ConnectError | None = None
        self._following = asyncio.create_task(self._follow(events))
        self._feeding: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Wait until the program runs. Raises the translated error of E2B, and SilenceError."""
        with anyio.move_on_after(self._machine.response_seconds):
            await self._decided.wait()
            if self._pid:
                self._feeding = asyncio.create_task(self._feed())
                return
            raise self.failure()
        raise SilenceError(
            f"e2b did not {_WHAT} within {self._machine.response_seconds:g} s; check the network"
        )

    def failure(self) -> SandboxError:
        """Return the error for a program that ended or broke as it started."""
        if self._broken is not None:
            return self._machine.translated(self._broken, _WHAT)
        output = self.diagnostics.decode(errors="replace").strip()
        return AmbiguousError(f"e2b could not {_WHAT}: {output or 'its response ended at once'}")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = b"" if self._closed else await self._output.take(max_bytes)
        if self._closed:
            raise anyio.ClosedResourceError
        if data:
            self._has_output = True
            return data
        if self._ended:
            raise anyio.EndOfStream
        raise anyio.BrokenResourceError from self._broken or self.refused

    async def send(self, item: bytes) -> None:
        if self._first_input is None:
            self._first_input, self._has_output = time.monotonic(), False
        view = memoryview(item)
        try:
            for start in range(0, len(item), _PIECE):
                await self._input.put(view[start : start + _PIECE])
        except anyio.BrokenResourceError:
            if self._closed:
                raise anyio.ClosedResourceError from None
            raise anyio.BrokenResourceError from self._broken or self.refused

    async def aclose(self) -> None:
        """End the program in the background: it may read its remaining input for 1 s, and is then killed."""
        if self._closed:
            return
        self._closed = True
        self._input.close()
        self._output.close()
        waited = 0.0 if self._first_input is None else time.monotonic() - self._first_input
        if self._streamed and waited > self._machine.follow_up_seconds and not self._has_output:
            self._machine.account.streams = (
                None  # without output, the input may be lost: probe again
            )
        self._machine.endings.begin(self._finish())

    async def _follow(self, events: Events) -> None:
        """Handle the program's events until its end."""
        try:
            async for response in events:
                event = response.event.event if response.event is not None else None
                if event is None or event.field == "keepalive":
                    continue
                if event.field == "start":
                    self._pid = event.value.pid
                    self._decided.set()
                elif event.field == "end":
                    self._ended = True
                    self.diagnostics = (
                        self.diagnostics or event.value.status.encode()[:_DIAGNOSTICS_BYTES]
                    )
                    return
                elif event.value.output is not None:
                    await self._deliver(event.value.output.field, event.value.output.value)
        except ConnectError as error:
            self._broken = error
        finally:
            self._output.close()
            self._input.close()
            self._decided.set()
            await events.aclose()

    async def _deliver(self, name: str, data: bytes) -> None:
        if name == "stderr":
            self.diagnostics = (self.diagnostics + data)[-_DIAGNOSTICS_BYTES:]
            return
        try:
            await self._output.put(data)
        except anyio.BrokenResourceError:
            pass  # drop output after the close, but continue until the end event

    async def _feed(self) -> None:
        """Forward the program's input to E2B until the input is closed."""
        try:
            if self._streamed:
                await self._machine.stream(self._pid, self._pieces())
                if not self._input.closed:
                    raise ConnectError(Code.ABORTED, "the input was cut off in transit")
            else:
                while data := await self._input.take(_CALL):
                    await self._machine.write(self._pid, data)
        except ConnectError as error:
            self.refused = error
            self._input.close()
            if not is_refusal(error):
                await asyncio.wait([self._following], timeout=_LINGER_SECONDS)
            self._output.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            data: bytes | None = None
            with anyio.move_on_after(KEEP_ALIVE):
                data = await self._input.take(_PIECE)
            if data == b"":
                return
            yield data or b""

    async def _finish(self) -> None:
        tasks = [self._following, *([self._feeding] if self._feeding is not None else [])]
        try:
            with anyio.move_on_after(self._machine.follow_up_seconds):
                await self._decided.wait()
            if self._pid and not (self._ended or self._broken or self.refused):
                await _quietly(self._drain(), _FLUSH_SECONDS)
            if self._pid and not self._ended and not self._machine.is_deleted:
                await _quietly(self._machine.kill(self._pid), self._machine.follow_up_seconds)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _drain(self) -> None:
        if self._feeding is not None:
            await asyncio.wait([self._feeding])
        if not self._machine.is_deleted:
            try:
                await self._machine.close_stdin(self._pid)
            except ConnectError as error:
                if not is_refusal(error):  # a daemon older than 0.5.2 cannot close it
                    raise
        await asyncio.wait([self._following])


async def _quietly(call: Awaitable[None], seconds: float) -> None:
    """Await a call for at most `seconds`, and ignore ConnectError, because no caller waits any more."""
    try:
        with anyio.move_on_after(seconds):
            await call
    except ConnectError:
        pass


def is_refusal(error: ConnectError) -> bool:
    """Return whether the daemon or a proxy refused the call, so that it was not carried out."""
    return error.code is Code.UNIMPLEMENTED or isinstance(error.__cause__, ProxyResponseError)
