"""One command of FakeProvider: a real process on this machine, with pipes or a terminal."""

import errno
import fcntl
import os
import resource
import struct
import subprocess
import termios
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from sandboxkit.errors import CommandStartError
from sandboxkit.provider import Output, StreamName
from sandboxkit.types import Command, CommandUsage, Ending, Exit, PtySize

_PIECE = 1 << 16
_PIPE = 1 << 17
"""More bytes than the kernel buffers between a command and its reader."""
_TERMINAL_SECONDS = 0.1
"""How long (s) output may take to pass through a terminal."""
_END_OF_INPUT = b"\x04"  # Ctrl-D


async def run(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    command: Command,
    output: Output,
    kill: Callable[[int], Awaitable[None]],
) -> Exit:
    """Run `argv` with the input, terminal and output of `command`.

    On cancellation, await `kill(pid)`, which ends the process tree, before returning.
    """
    with _Descriptors() as descriptors:
        process = _start(argv, cwd, env, command, descriptors)
        usage: resource.struct_rusage | None = None
        grace = 0.0 if command.pty is None else _TERMINAL_SECONDS
        sources = [_OutputPump(descriptors.stdout, "stdout", output, grace)]
        if descriptors.stderr is not None:
            sources.append(_OutputPump(descriptors.stderr, "stderr", output, grace))
        feeding = anyio.CancelScope()
        try:
            async with anyio.create_task_group() as group:
                for source in sources:
                    group.start_soon(source.pump)
                if command.stdin is not None:
                    group.start_soon(_feed, descriptors, command, feeding)
                usage = await _reap(process)
                feeding.cancel()
                for source in sources:
                    source.finish()
        except ExceptionGroup as errors:  # what `except*` raises is a group before Python 3.11.4
            raise errors.exceptions[0] from None
        finally:
            if usage is None:
                with anyio.CancelScope(shield=True):
                    await kill(process.pid)
                    usage = await _reap(process)
    assert usage is not None
    seconds = usage.ru_utime + usage.ru_stime
    # No peak memory: for a forked child the kernel counts from its parent's peak.
    used = CommandUsage(processor_seconds=seconds)
    if process.returncode < 0:
        return Exit(128 - process.returncode, Ending.SIGNAL, used)
    return Exit(process.returncode, Ending.EXITED, used)


class _Descriptors:
    """Our ends of a command's streams, and the command's ends until it has started."""

    def __init__(self) -> None:
        self.stdin: int | None = None
        self.stdout = -1
        self.stderr: int | None = None
        self._open: set[int] = set()

    def __enter__(self) -> "_Descriptors":
        return self

    def __exit__(self, *exc: object) -> None:
        for descriptor in tuple(self._open):
            self.close(descriptor)

    def pair(self, made: tuple[int, int]) -> tuple[int, int]:
        """Register a pair of descriptors to be closed on exit; return it."""
        self._open.update(made)
        return made

    def close(self, descriptor: int) -> None:
        """Close one descriptor now. Idempotent."""
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)


def _start(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    command: Command,
    ours: _Descriptors,
) -> subprocess.Popen[bytes]:
    theirs: tuple[int, int, int]
    if command.pty is not None:
        ours.stdout, terminal = ours.pair(os.openpty())
        _resize(terminal, command.pty)
        ours.stdin = ours.stdout
        theirs = terminal, terminal, terminal
    else:
        if command.stdin is None:
            stdin = subprocess.DEVNULL
        else:
            stdin, ours.stdin = ours.pair(os.pipe())
        ours.stdout, stdout = ours.pair(os.pipe())
        ours.stderr, stderr = ours.pair(os.pipe())
        theirs = stdin, stdout, stderr
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            start_new_session=True,
            preexec_fn=None if command.pty is None else _take_terminal,
        )
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else errno.EINVAL
        reason = os.strerror(number or errno.EINVAL)
        raise CommandStartError(
            f"{command.argv[0]!r} was not started: {reason}", errno=number, provider="fake"
        ) from error
    for descriptor in theirs:
        ours.close(descriptor)
    for mine in (ours.stdin, ours.stdout, ours.stderr):
        if mine is not None:
            os.set_blocking(mine, False)
    return process


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _resize(terminal: int, size: PtySize) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


async def _reap(process: subprocess.Popen[bytes]) -> resource.struct_rusage:
    """Wait for the process itself, even if others hold its pipes open; return its usage."""
    descriptor = os.pidfd_open(process.pid)
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    _, status, usage = os.wait4(process.pid, 0)  # noqa: ASYNC222 - it has ended
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage


async def _feed(descriptors: _Descriptors, command: Command, scope: anyio.CancelScope) -> None:
    assert descriptors.stdin is not None
    assert command.stdin is not None
    with scope:
        async for item in command.stdin:
            if isinstance(item, PtySize):
                if command.pty is not None:
                    _resize(descriptors.stdin, item)
            elif not await _write(descriptors.stdin, item):
                break
        if command.pty is None:
            descriptors.close(descriptors.stdin)
        else:
            await _write(descriptors.stdin, _END_OF_INPUT)


async def _write(descriptor: int, data: bytes) -> bool:
    """Write all of `data`; return False if the reader is gone."""
    left = memoryview(data)
    while left:
        await anyio.wait_writable(descriptor)
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return False
    return True


class _OutputPump:
    """One output stream of a command."""

    def __init__(self, descriptor: int, stream: StreamName, output: Output, grace: float) -> None:
        self._descriptor, self._output, self._grace = descriptor, output, grace
        self._stream: StreamName = stream
        self._idle = anyio.CancelScope()
        self._ended = False

    def finish(self) -> None:
        """Record that the command has ended, so that `pump` does not wait for other holders of the stream."""
        self._ended = True
        self._idle.cancel()

    async def pump(self) -> None:
        """Deliver everything that the command writes."""
        while not self._ended:
            with anyio.CancelScope() as self._idle:
                await anyio.wait_readable(self._descriptor)
                # Deliver outside this scope, so that data is not lost after it was read.
            if self._idle.cancelled_caught:
                break
            if not await self._deliver():
                return
        left = _PIPE
        while left > 0:
            with anyio.move_on_after(self._grace):
                await anyio.wait_readable(self._descriptor)
            size = await self._deliver()
            if not size:
                return
            left -= size

    async def _deliver(self) -> int:
        """Read and deliver once; return the size, or 0 at the end of the stream.

        Without data, return 0 if the command has ended, else 1.
        """
        try:
            chunk = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return 0 if self._ended else 1
        except OSError as error:
            if error.errno != errno.EIO:  # EIO: no process has the terminal open
                raise
            return 0
        if chunk:
            await self._output(self._stream, chunk)
        return len(chunk)
