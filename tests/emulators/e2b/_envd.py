"""The daemon in each sandbox: E2B's process service with the behaviours of the real one.

A process outlives the connection that started it; its end is told when nobody holds its outputs
any more; a signal and a deadline end one process and spare what it started; a process that a
signal ended has the exit code -1.
"""

import asyncio
import base64
import signal
from collections.abc import AsyncIterator
from typing import Any, Literal

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb as pb
from e2b.envd.process.process_connect import Process
from protobuf import Oneof

from tests.emulators._engine import MachineEnded
from tests.emulators.e2b._boxes import Box, Boxes, Running

USERS = ("user", "root")
_SAID = {
    signal.SIGHUP: "hangup",
    signal.SIGINT: "interrupt",
    signal.SIGABRT: "aborted",
    signal.SIGKILL: "killed",
    signal.SIGTERM: "terminated",
}


class Envd(Process):
    """The service; which sandbox is meant is in a header."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def start(self, request: pb.StartRequest, ctx: Any) -> AsyncIterator[pb.StartResponse]:
        box, config = self._box(ctx), request.process
        assert config is not None
        _check_user(ctx)
        size = request.pty.size if request.pty is not None else None
        try:
            if config.cwd and await self._missing(box, config.cwd):
                raise ConnectError(
                    Code.INVALID_ARGUMENT, f"cwd '{config.cwd}' does not exist or is not accessible"
                )
            process = await box.machine.spawn(
                (config.cmd, *config.args),
                env=dict(config.envs),
                cwd=config.cwd or "/",
                pty=None if size is None else (size.rows, size.cols),
            )
            if not request.stdin and size is None:
                await process.close_stdin()
        except MachineEnded:
            raise _gone() from None
        box.pids += 1
        pid = box.pids
        tag = request.tag if request.has_field("tag") else None
        running = box.processes[pid] = Running(process, config, tag, size is not None)
        events = _subscribe(running)
        follow = asyncio.create_task(_follow(box, pid, running))
        box.tasks.add(follow)
        follow.add_done_callback(box.tasks.discard)
        if ctx.timeout_ms:
            seconds = ctx.timeout_ms / 1000
            asyncio.get_running_loop().call_later(
                seconds, lambda: asyncio.ensure_future(_kill_quietly(running))
            )
        async for event in _events(pid, running, events, ctx):
            yield pb.StartResponse(event=event)

    async def connect(
        self, request: pb.ConnectRequest, ctx: Any
    ) -> AsyncIterator[pb.ConnectResponse]:
        pid, running = _find(self._box(ctx), request.process)
        async for event in _events(pid, running, _subscribe(running), ctx):
            yield pb.ConnectResponse(event=event)

    async def list(self, request: pb.ListRequest, ctx: Any) -> pb.ListResponse:
        box = self._box(ctx)
        return pb.ListResponse(
            processes=[
                pb.ProcessInfo(config=running.config, pid=pid, tag=running.tag)
                for pid, running in box.processes.items()
            ]
        )

    async def update(self, request: pb.UpdateRequest, ctx: Any) -> pb.UpdateResponse:
        _, running = _find(self._box(ctx), request.process)
        if not running.pty:
            raise ConnectError(Code.FAILED_PRECONDITION, "tty not assigned to process")
        assert request.pty is not None
        assert request.pty.size is not None
        await running.process.resize(request.pty.size.rows, request.pty.size.cols)
        return pb.UpdateResponse()

    async def send_input(self, request: pb.SendInputRequest, ctx: Any) -> pb.SendInputResponse:
        _, running = _find(self._box(ctx), request.process)
        await _write(running, request.input)
        return pb.SendInputResponse()

    async def stream_input(
        self, request: AsyncIterator[pb.StreamInputRequest], ctx: Any
    ) -> pb.StreamInputResponse:
        running: Running | None = None
        async for message in request:
            match message.event:
                case Oneof(field="start", value=start):
                    assert isinstance(start, pb.StreamInputRequest.StartEvent)
                    _, running = _find(self._box(ctx), start.process)
                case Oneof(field="data", value=data):
                    assert running is not None
                    assert isinstance(data, pb.StreamInputRequest.DataEvent)
                    await _write(running, data.input)
        return pb.StreamInputResponse()

    async def close_stdin(self, request: pb.CloseStdinRequest, ctx: Any) -> pb.CloseStdinResponse:
        _, running = _find(self._box(ctx), request.process)
        if running.pty:
            raise ConnectError(Code.FAILED_PRECONDITION, "cannot close stdin of a terminal")
        await running.process.close_stdin()
        return pb.CloseStdinResponse()

    async def send_signal(self, request: pb.SendSignalRequest, ctx: Any) -> pb.SendSignalResponse:
        _, running = _find(self._box(ctx), request.process)
        await running.process.kill(int(request.signal))
        return pb.SendSignalResponse()

    def _box(self, ctx: Any) -> Box:
        headers = ctx.request_headers
        box = self._boxes.alive.get(headers.get("e2b-sandbox-id", ""))
        if box is None:
            raise ConnectError(Code.UNAVAILABLE, "The sandbox was not found")
        if headers.get("x-access-token") != box.token:
            raise ConnectError(Code.UNAUTHENTICATED, "invalid access token")
        return box

    async def _missing(self, box: Box, cwd: str) -> bool:
        if cwd in ("/", "/tmp"):
            return False
        test = await box.machine.spawn(("test", "-d", cwd), env={}, cwd="/")
        return await test.wait() != 0


def _check_user(ctx: Any) -> None:
    scheme, _, text = ctx.request_headers.get("authorization", "").partition(" ")
    if not scheme:
        return
    user = base64.b64decode(text).decode().partition(":")[0]
    if user not in USERS:
        raise ConnectError(Code.UNAUTHENTICATED, f"invalid username: '{user}'")


def _find(box: Box, selector: pb.ProcessSelector | None) -> tuple[int, Running]:
    wanted = selector.selector if selector is not None else None
    for pid, running in box.processes.items():
        if wanted == Oneof("pid", pid) or (wanted == Oneof("tag", running.tag)):
            return pid, running
    shown = wanted.value if wanted is not None else None
    raise ConnectError(Code.NOT_FOUND, f"process with {shown!r} not found")


def _subscribe(running: Running) -> asyncio.Queue[Any]:
    events: asyncio.Queue[Any] = asyncio.Queue(4)
    running.subscribers.append(events)
    if running.end is not None:
        events.put_nowait(running.end)
    return events


async def _events(
    pid: int, running: Running, events: asyncio.Queue[Any], ctx: Any
) -> AsyncIterator[pb.ProcessEvent]:
    interval = float(ctx.request_headers.get("keepalive-ping-interval", "90"))
    try:
        started: Oneof[Literal["start"], Any] = Oneof("start", pb.ProcessEvent.StartEvent(pid=pid))
        yield pb.ProcessEvent(event=started)
        while True:
            try:
                event = await asyncio.wait_for(events.get(), interval)
            except TimeoutError:
                alive: Oneof[Literal["keepalive"], Any] = Oneof(
                    "keepalive", pb.ProcessEvent.KeepAlive()
                )
                yield pb.ProcessEvent(event=alive)
                continue
            if isinstance(event, Exception):
                raise event
            yield pb.ProcessEvent(event=event)
            if event.field == "end":
                return
    finally:
        running.subscribers.remove(events)
        while not events.empty():  # whoever waits to put something is to go on
            events.get_nowait()


async def _follow(box: Box, pid: int, running: Running) -> None:
    async def pump(field: Any, stream: AsyncIterator[bytes]) -> None:
        async for chunk in stream:
            output = pb.ProcessEvent.DataEvent(output=Oneof(field, chunk))
            for events in list(running.subscribers):
                await events.put(Oneof("data", output))

    first = "pty" if running.pty else "stdout"
    try:
        await asyncio.gather(
            pump(first, running.process.stdout), pump("stderr", running.process.stderr)
        )
        running.end = Oneof("end", _end(await running.process.wait()))
    except (MachineEnded, BrokenPipeError):
        running.end = ConnectError(
            Code.UNAVAILABLE, "the connection to the sandbox ended before the stream completed"
        )
    del box.processes[pid]
    for events in list(running.subscribers):
        await events.put(running.end)


def _end(code: int) -> pb.ProcessEvent.EndEvent:
    if code < 0:
        said = f"signal: {_SAID.get(signal.Signals(-code), 'killed')}"
        return pb.ProcessEvent.EndEvent(exit_code=-1, exited=False, status=said, error=said)
    said = f"exit status {code}"
    error = said if code else None
    return pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=said, error=error)


async def _write(running: Running, data: pb.ProcessInput | None) -> None:
    assert data is not None
    assert data.input is not None
    if (data.input.field == "pty") != running.pty:
        raise ConnectError(Code.FAILED_PRECONDITION, "tty not assigned to process")
    try:
        await running.process.write(data.input.value)
    except BrokenPipeError:
        raise ConnectError(Code.INTERNAL, "error writing to stdin: write |1: broken pipe") from None
    except MachineEnded:
        raise _gone() from None


async def _kill_quietly(running: Running) -> None:
    try:
        await running.process.kill()
    except MachineEnded:
        pass


def _gone() -> ConnectError:
    return ConnectError(Code.UNAVAILABLE, "The sandbox was not found")
