"""E2B's process service in the daemon of each sandbox, which behaves like the real one.

A process outlives the connection that started it. Its end is reported when no process has its outputs
open any more. A signal or a deadline ends one process but not its children; a process that a signal
ended has the exit code -1.
"""

import asyncio
import base64
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any, Literal

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb as pb
from e2b.envd.process.process_connect import Process
from protobuf import Oneof

from tests.emulators._engine import MachineEnded
from tests.emulators.e2b._boxes import HOMES, Box, Boxes, Running

_CHUNK = 32 << 10
"""Maximum bytes of output per event."""
_PRIORITY = 'echo 100 > /proc/$$/oom_score_adj && exec nice -n 0 "${@}"'
"""The shell command that starts every program; a missing program is therefore the shell's exit status."""


class Envd(Process):
    """The process service. A header of each request has the sandbox's id."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def start(self, request: pb.StartRequest, ctx: Any) -> AsyncIterator[pb.StartResponse]:
        box, config = self._box(ctx), request.process
        assert config is not None
        user = _user(ctx)
        size = request.pty.size if request.pty is not None else None
        try:
            assert config.cwd in ("", "/", "/tmp"), "this emulator has no other working directories"
            argv = ("/bin/sh", "-c", _PRIORITY, "--", config.cmd, *config.args)
            env = {"HOME": HOMES[user], "USER": user, "LOGNAME": user, **config.envs}
            self._may_fork(argv, pty=size is not None)
            pty = None if size is None else (size.rows, size.cols)
            process = await box.machine.spawn(argv, env=env, cwd=config.cwd, pty=pty)
            may_close = size is None and self._boxes.shape.closes_stdin
            closed = may_close and request.has_field("stdin") and not request.stdin
            if closed:
                await process.close_stdin()
        except MachineEnded:
            raise _gone() from None
        box.pids += 1
        pid = box.pids
        running = box.processes[pid] = Running(process, config, size is not None, closed)
        events = _subscribe(running)
        self._boxes.spawn(_follow(box, pid, running))
        if ctx.timeout_ms:
            seconds = ctx.timeout_ms / 1000
            loop = asyncio.get_running_loop()
            loop.call_later(seconds, lambda: self._boxes.spawn(_kill_quietly(running)))
        async for event in _events(pid, running, events):
            yield pb.StartResponse(event=event)

    async def send_input(self, request: pb.SendInputRequest, ctx: Any) -> pb.SendInputResponse:
        pid, running = _find(self._box(ctx), request.process)
        await _write(pid, running, request.input)
        return pb.SendInputResponse()

    async def stream_input(
        self, request: AsyncIterator[pb.StreamInputRequest], ctx: Any
    ) -> pb.StreamInputResponse:
        pid, running = 0, None
        async for message in request:
            match message.event:
                case Oneof(field="start", value=start):
                    assert isinstance(start, pb.StreamInputRequest.StartEvent)
                    pid, running = _find(self._box(ctx), start.process)
                case Oneof(field="data", value=data):
                    assert running is not None
                    assert isinstance(data, pb.StreamInputRequest.DataEvent)
                    await _write(pid, running, data.input)
                case Oneof(field="keepalive"):
                    self._boxes.kept_alive += 1
        return pb.StreamInputResponse()

    async def close_stdin(self, request: pb.CloseStdinRequest, ctx: Any) -> pb.CloseStdinResponse:
        _, running = _find(self._box(ctx), request.process)
        if running.pty:
            why = "cannot close stdin for PTY process — send Ctrl+D (0x04) instead"
            raise ConnectError(Code.UNKNOWN, f"error closing stdin: {why}")
        running.closed = True
        await running.process.close_stdin()
        return pb.CloseStdinResponse()

    async def send_signal(self, request: pb.SendSignalRequest, ctx: Any) -> pb.SendSignalResponse:
        _, running = _find(self._box(ctx), request.process)
        await running.process.kill(int(request.signal))
        return pb.SendSignalResponse()

    def _box(self, ctx: Any) -> Box:
        box = self._boxes.alive.get(ctx.request_headers.get("e2b-sandbox-id", ""))
        if box is None:  # it ended after the proxy's check
            raise _gone()
        return box

    def _may_fork(self, argv: tuple[str, ...], *, pty: bool) -> None:
        why = self._boxes.settings.unforkable
        if not why:
            return
        command = " ".join(argv[4:])  # the real daemon repeats it in full
        what = f"pty with command '{command}' in dir '/'" if pty else f"process '{command}'"
        output = f"error starting {what}: fork/exec /bin/sh: {why}"
        raise ConnectError(Code.INVALID_ARGUMENT, output)


def _user(ctx: Any) -> str:
    scheme, _, text = ctx.request_headers.get("authorization", "").partition(" ")
    user = base64.b64decode(text).decode().partition(":")[0] if scheme else "user"
    if user not in HOMES:
        raise ConnectError(Code.UNAUTHENTICATED, f"invalid username: '{user}'")
    return user


def _find(box: Box, selector: pb.ProcessSelector | None) -> tuple[int, Running]:
    """Return the process with a pid. Raises ConnectError."""
    pid = None if selector is None or selector.selector is None else selector.selector.value
    assert isinstance(pid, int), "this emulator finds processes by their pids alone"
    if pid not in box.processes:
        raise ConnectError(Code.NOT_FOUND, f"process with pid {pid} not found")
    return pid, box.processes[pid]


def _subscribe(running: Running) -> asyncio.Queue[Any]:
    events: asyncio.Queue[Any] = asyncio.Queue(4)
    running.subscribers.append(events)
    if running.end is not None:
        events.put_nowait(running.end)
    return events


async def _events(
    pid: int, running: Running, events: asyncio.Queue[Any]
) -> AsyncIterator[pb.ProcessEvent]:
    try:
        started: Oneof[Literal["start"], Any] = Oneof("start", pb.ProcessEvent.StartEvent(pid=pid))
        yield pb.ProcessEvent(event=started)
        while True:
            event = await events.get()
            if isinstance(event, Exception):
                raise event
            yield pb.ProcessEvent(event=event)
            if event.field == "end":
                return
    finally:
        running.subscribers.remove(events)
        while not events.empty():  # so that blocked writers of the queue continue
            events.get_nowait()


async def drop_streams(box: Box) -> None:
    """Abort the streams of all its processes, as a pause of the machine does; the processes keep running."""
    lost = ConnectError(Code.UNAVAILABLE, "the connection to the sandbox was lost")
    for running in list(box.processes.values()):
        for events in list(running.subscribers):
            await events.put(lost)


async def _follow(box: Box, pid: int, running: Running) -> None:
    async def pump(field: Any, stream: AsyncIterator[bytes]) -> None:
        async for data in stream:
            for start in range(0, len(data), _CHUNK):
                chunk = data[start : start + _CHUNK]
                output = pb.ProcessEvent.DataEvent(output=Oneof(field, chunk))
                for events in list(running.subscribers):  # without any the output is dropped
                    await events.put(Oneof("data", output))

    first = "pty" if running.pty else "stdout"
    try:
        process = running.process
        await asyncio.gather(pump(first, process.stdout), pump("stderr", process.stderr))
        running.end = Oneof("end", _end(await process.wait()))
    except (MachineEnded, BrokenPipeError):
        why = "the connection to the sandbox ended before the stream completed"
        running.end = ConnectError(Code.UNAVAILABLE, why)
    del box.processes[pid]
    for events in list(running.subscribers):
        await events.put(running.end)


def _end(code: int) -> pb.ProcessEvent.EndEvent:
    if code < 0:
        message = f"signal: {_name(-code)}"
        return pb.ProcessEvent.EndEvent(exit_code=-1, exited=False, status=message, error=message)
    message = f"exit status {code}"
    error = message if code else None
    return pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=message, error=error)


def _name(number: int) -> str:
    """Return Go's name of a signal: the C library's in lower case, or "signal N" for a real-time signal."""
    if number > signal.SIGSYS:
        return f"signal {number}"
    name = str(signal.strsignal(number))
    return name if name.startswith(("CPU", "I/O")) else name[:1].lower() + name[1:]


async def _write(pid: int, running: Running, data: pb.ProcessInput | None) -> None:
    assert data is not None
    assert data.input is not None
    if data.input.field == "pty":
        where, wrong = "tty", not running.pty
        why = "tty not assigned to process — input should be written to the stdin, not the tty"
    else:
        where, wrong = "stdin", running.pty
        why = "tty assigned to process — input should be written to the pty, not the stdin"
        if not running.pty and running.closed:
            wrong, why = True, "stdin not enabled or closed"
    if wrong:
        raise ConnectError(Code.INTERNAL, f"error writing to {where}: {why}")
    try:
        await running.process.write(data.input.value)
    except BrokenPipeError:
        why = "write /dev/ptmx: input/output error" if running.pty else "write |1: broken pipe"
        said = f"error writing to {where} of process '{pid}': {why}"
        raise ConnectError(Code.INTERNAL, f"error writing to {where}: {said}") from None
    except MachineEnded:
        raise _gone() from None


async def _kill_quietly(running: Running) -> None:
    with contextlib.suppress(MachineEnded):
        await running.process.kill()


def _gone() -> ConnectError:
    return ConnectError(Code.UNAVAILABLE, "The sandbox was not found")
