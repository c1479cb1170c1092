"""Modal's task command router, with which a worker serves the commands of its sandboxes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from grpclib import GRPCError, Status
from modal._utils.grpc_testing import patch_mock_servicer
from modal_proto import task_command_router_pb2 as pb2
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.emulators._engine import MachineEnded
from tests.emulators.modal._boxes import Box, Boxes, Exec, environment

_T = TypeVar("_T")
_ARGUMENTS = 1 << 16
"""Maximum size in bytes of a command's arguments."""
_MESSAGE = 4 << 20
"""The default maximum size in bytes of a message to a gRPC server."""


# Any: its methods are functions of requests instead of streams, see `Checked`.
_Base: Any = TaskCommandRouterBase


@patch_mock_servicer
class Router(_Base):  # type: ignore[misc]
    """The calls to start a command, read, write and wait. There is no call to kill a command."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def TaskExecStart(self, request: Any) -> Any:
        box = self._boxes.of_task(request.task_id)
        if sum(len(argument.encode()) for argument in request.command_args) > _ARGUMENTS:
            raise GRPCError(Status.INVALID_ARGUMENT, "Argument list too long")
        if request.workdir and not request.workdir.startswith("/"):
            raise GRPCError(Status.INVALID_ARGUMENT, "workdir must be absolute")
        env = environment(request.secret_sources)
        size = None
        if request.pty_info.enabled:
            size = (request.pty_info.winsz_rows or 24, request.pty_info.winsz_cols or 80)
            env = {"TERM": request.pty_info.env_term or "xterm", **env}
        argv, workdir = tuple(request.command_args), request.workdir or None
        try:
            spawning = self._boxes.spawn(box, request.exec_id, argv, env, size, workdir)
            run = await _to_the_end(box, spawning)
        except MachineEnded:
            raise _gone(box) from None
        if request.timeout_secs:
            run.pumps.append(asyncio.create_task(_kill_after(run, request.timeout_secs)))
        return pb2.TaskExecStartResponse()

    async def TaskExecStdioRead(self, stream: Any) -> None:
        request = await stream.recv_message()
        box, run = self._find(request)
        stdout = request.file_descriptor == pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        source = run.stdout if stdout else run.stderr

        async def send() -> None:
            async for chunk in source.read(request.offset):
                await stream.send_message(pb2.TaskExecStdioReadResponse(data=chunk))

        try:
            await _while_alive(box, send())
        except LookupError:
            raise GRPCError(Status.OUT_OF_RANGE, "this output is not kept any more") from None

    async def TaskExecStdinWrite(self, request: Any) -> Any:
        box, run = self._find(request)
        if request.ByteSize() > _MESSAGE:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "decoded message length too large")

        async def write() -> None:
            async with run.writing:
                if request.offset > run.written:
                    raise GRPCError(Status.OUT_OF_RANGE, f"stdin is at offset {run.written}")
                again = run.written - request.offset
                data = request.data if self._boxes.settings.repeats_writes else request.data[again:]
                if data:
                    if run.closed or run.ended.is_set():
                        raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed")
                    await run.process.write(data)
                    run.written = max(run.written, request.offset + len(data))
                if request.eof and not run.closed:
                    run.closed = True
                    await run.process.close_stdin()

        try:
            await _while_alive(box, _to_the_end(box, write()))
        except BrokenPipeError:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from None
        return pb2.TaskExecStdinWriteResponse()

    async def TaskSnapshotFilesystem(self, request: Any) -> Any:
        box = self._boxes.of_task(request.task_id)
        image_id = await self._boxes.image_of(box, request)
        return pb2.TaskSnapshotFilesystemResponse(image_id=image_id)

    async def TaskExecWait(self, request: Any) -> Any:
        box, run = self._find(request)
        await _while_alive(box, run.ended.wait())
        status = await run.process.wait()
        return pb2.TaskExecWaitResponse(**({"signal": -status} if status < 0 else {"code": status}))

    def _find(self, request: Any) -> tuple[Box, Exec]:
        box = self._boxes.of_task(request.task_id)
        run = box.execs.get(request.exec_id)
        if run is None:
            raise GRPCError(Status.NOT_FOUND, f"Exec {request.exec_id!r} not found")
        return box, run


async def _to_the_end(box: Box, work: Coroutine[Any, Any, _T]) -> _T:
    """Do work that the worker continues even if the connection of its request breaks.

    When the SDK repeats the request, it therefore finds the started command and its input's offset.
    """
    task = asyncio.create_task(work)
    box.work.add(task)
    task.add_done_callback(box.work.discard)
    return await asyncio.shield(task)


async def _while_alive(box: Box, work: Coroutine[Any, Any, Any]) -> None:
    """Do the work; raise NOT_FOUND as soon as the sandbox ends, as Modal does when a task shuts down."""
    task = asyncio.ensure_future(work)
    ended = asyncio.ensure_future(box.ended.wait())
    try:
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _gone(box)
        task.result()
    except MachineEnded:
        raise _gone(box) from None
    finally:
        for left in (task, ended):
            left.cancel()
        await asyncio.gather(task, ended, return_exceptions=True)


def _gone(box: Box) -> GRPCError:
    return GRPCError(Status.NOT_FOUND, f"Task {box.task_id!r} not found")


async def _kill_after(run: Exec, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await run.process.kill()
