"""The requests to an agent, one coroutine for each, over an `AgentClient`."""

import errno
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import inf

import anyio

from sandboxkit.errors import (
    CommandStartError,
    ConfigurationError,
    SandboxFileError,
    SandboxPausedError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output
from sandboxkit.providers._agent import frames
from sandboxkit.providers._agent.client import MOST_ALONG, AgentClient
from sandboxkit.providers._agent.exec_frame import exec_payload
from sandboxkit.providers._agent.failures import CallError, ProtocolError, SilentError
from sandboxkit.providers._agent.frames import Fields, Kind, Windows
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.providers._agent.stream import AgentStream
from sandboxkit.types import (
    Command,
    CommandInput,
    CommandSeries,
    CommandUsage,
    Ending,
    Exit,
    FileInfo,
    FileType,
    Interpreter,
    ProcessResult,
    PtySize,
    StdinItem,
    StreamName,
    WholeInput,
)

_BESIDE_OWNER = 2
PAUSED = errno.EHOSTDOWN
"""The errno of requests that the agent refuses because the sandbox is paused."""
SETS_UP = 17
"""The number that an agent lists among its calls if an EXEC may have a setup."""
_KEEPS = 19
"""The number that it lists if it keeps the contents of files that later commands bring again."""
(
    _READ,
    _WRITE,
    _STAT,
    _LIST,
    _REMOVE,
    _PUT,
    _GET,
    _RENEW,
    _LOGS,
    _WAIT,
    _STATS,
    _RESET,
    _INTERPRETER,
) = range(1, 14)
_PAUSE = 18
_RUNS_SERIES = 20
"""The number that it lists if an EXEC may have a series."""
_KEEP_MODE = 0xFFFFFFFF
_RUNNING, _USED = struct.Struct(">IQ"), struct.Struct(">QQ?Q")
_EXIT = struct.Struct(">IBQQQI")
_ENDINGS = {0: Ending.EXITED, 1: Ending.SIGNAL, 2: Ending.OUT_OF_MEMORY}
_KILLED = 128 + 9
_UNKNOWN, _UNKNOWN_32 = 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF
_REMEDIES = {
    errno.E2BIG: "its arguments and environment are too long: pass long values through stdin, or in a file",
    errno.EAGAIN: "the sandbox has reached its limit of processes: raise pids=, or run fewer at a time",
    errno.ENOMEM: "the sandbox has no memory left: raise memory_mb=, or run fewer at a time",
    errno.EMFILE: "too many files are open in the sandbox: run fewer commands at a time",
    errno.ENFILE: "too many files are open on its machine: run fewer commands at a time",
    errno.ENOEXEC: "it is neither a program for this machine nor a script whose first line names an "
    "interpreter",
}
_SMALL_FILE = 256 << 10
_SETUP_BYTES = 1 << 20
"""The largest files of a setup, in bytes together, that are sent along with the command."""
_MAX_ENTRIES, _MAX_LISTING = 50_000, 8 << 20
_MOST_LOGS = 2 << 20
_FILE_TYPES = {1: FileType.FILE, 2: FileType.DIRECTORY, 3: FileType.SYMLINK}


def hello(
    config: AgentConfig | None, windows: Windows = frames.NEAR, *, beside_owner: bool = False
) -> bytes:
    """Return the payload of a session's first frame; the owner's carries its `config`.

    `beside_owner` marks a second connection of the owner's process, which ends with that process.
    """
    config_or_none = config or AgentConfig()
    return b"".join(
        (
            frames.MAGIC,
            frames.PROTOCOL_VERSION.to_bytes(4, "big"),
            bytes([_BESIDE_OWNER if beside_owner else config is not None]),
            windows.from_agent.to_bytes(4, "big"),
            windows.to_agent.to_bytes(4, "big"),
            frames.strings(f"{name}={value}" for name, value in config_or_none.env.items()),
            frames.strings(config_or_none.command),
        )
    )


async def execute(
    client: AgentClient,
    command: Command,
    output: Output,
    code: str | None = None,
    series: CommandSeries | None = None,
) -> Exit:
    """Run a command as `Box.exec` specifies; cancelling it kills the command's process tree.

    With `code`, run that Python code in a fork of the interpreter instead. With `series`, run the command
    once for each of its inputs; the output is the records of PROTOCOL.md, and the Exit says nothing.

    The usage fields `throttled_seconds` and `oom_kills` are set only if the agent can read the sandbox's
    control group. An owner that can read the group from outside sets them, and decides the ending of a
    command that died of SIGKILL.
    """
    stdin = command.stdin
    if series is None:
        command = await _without_large_files(client, command)
    along = stdin.data if isinstance(stdin, WholeInput) and len(stdin.data) <= MOST_ALONG else None
    kept = client.kept.of(command) if _KEEPS in client.calls else {}
    try:
        stream = client.open(Kind.EXEC, exec_payload(command, code, kept, series), along)
    except ValueError as error:
        raise _not_started(CallError(errno.E2BIG, str(error))) from error
    sent_again = [each for each in kept.values() if each.there]
    try:
        plain = code is None and series is None
        ended = await follow(stream, command, output, fed=along is not None, plain=plain)
    except SandboxFileError as error:
        reason = error.__cause__
        if not (sent_again and isinstance(reason, CallError) and reason.errno == errno.ESTALE):
            raise
        for each in sent_again:
            each.there = False
        return await execute(client, command, output, code, series)
    for each in kept.values():
        each.there = True
    return ended


async def _without_large_files(client: AgentClient, command: Command) -> Command:
    """Write the files of a setup if they are too large for the frame that starts the command."""
    setup = command.setup
    if setup is None or sum(len(file.content) for file in setup.files) <= _SETUP_BYTES:
        return command
    for file in setup.files:
        try:
            await write_file(client, file.path, file.content, file.mode)
        except CallError as error:
            raise _not_started(CallError(error.errno, str(error), file.path)) from error
    return replace(command, setup=replace(setup, files=()))


async def follow(
    stream: AgentStream,
    command: Command,
    output: Output,
    *,
    fed: bool = False,
    plain: bool = True,
) -> Exit:
    """Send stdin to, and read the output of, a command whose EXEC was sent; see `execute`.

    `fed` says that its stdin was sent as well, `plain` that the command needs no interpreter and no reset.
    """
    try:
        if command.stdin is None or fed:
            return await _collect(stream, output)
        status: Exit | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_feed, stream, command.stdin)
                status = await _collect(stream, output)
                group.cancel_scope.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        assert status is not None
        return status
    except CallError as error:
        raise _not_started(error, may_be_wrong=not plain or command.user is not None) from error
    finally:
        await stream.abandon()


def _not_started(
    error: CallError, *, may_be_wrong: bool = True
) -> (
    CommandStartError
    | ConfigurationError
    | ProtocolError
    | SandboxFileError
    | SandboxPausedError
    | SandboxTerminatedError
):
    """Return the error for a command that the agent refused.

    `may_be_wrong`: the request names something that the sandbox may lack. An agent that calls another request wrong
    lies, and the caller's options are not at fault.
    """
    if error.errno == PAUSED:
        return SandboxPausedError(f"{error}: call resume() first")
    if error.path is not None:
        return SandboxFileError(str(error), path=error.path)
    if error.errno == 0:
        wrong = "it refuses a command as wrong that names no user"
        return ConfigurationError(str(error)) if may_be_wrong else ProtocolError(wrong)
    if error.errno in (errno.EOWNERDEAD, errno.ENOTRECOVERABLE):
        # The interpreter has ended, so the job's outcome is lost. EOWNERDEAD: a job killed it.
        return SandboxTerminatedError(str(error), by_command=error.errno == errno.EOWNERDEAD)
    remedy = _REMEDIES.get(error.errno)
    return CommandStartError(f"{error}; {remedy}" if remedy else str(error), errno=error.errno)


def exit_of(payload: bytes) -> Exit:
    """Decode the payload of EXIT."""
    status, how, processor, peak, throttled, oom_kills = frames.unpack(_EXIT, payload)
    if how not in _ENDINGS:
        raise ProtocolError(f"a command ended in the way {how}")
    ending: Ending | None = _ENDINGS[how]
    if ending is Ending.SIGNAL and status == _KILLED and oom_kills == _UNKNOWN_32:
        ending = None  # without the kernel's count of OOM kills the cause is unknown
    return Exit(
        status,
        ending,
        CommandUsage(
            processor_seconds=_seconds(processor),
            peak_memory_bytes=None if peak == _UNKNOWN else peak,
            throttled_seconds=_seconds(throttled),
            oom_kills=None if oom_kills == _UNKNOWN_32 else oom_kills,
        ),
    )


def _seconds(nanoseconds: int) -> float | None:
    return None if nanoseconds == _UNKNOWN else nanoseconds / 1e9


async def _collect(stream: AgentStream, output: Output) -> Exit:
    while True:
        frame = await stream.receive()
        if frame.kind == Kind.EXIT:
            return exit_of(frame.payload)
        await output("stdout" if frame.kind == Kind.STDOUT else "stderr", frame.payload)
        await stream.consumed(len(frame.payload))


async def _feed(stream: AgentStream, stdin: AsyncIterable[StdinItem]) -> None:
    async for item in stdin:
        if isinstance(item, PtySize):
            await stream.control(Kind.RESIZE, struct.pack(">HH", item.rows, item.cols))
        else:
            await stream.send(item)
    await stream.finish()


async def _result(stream: AgentStream, past_listing: CallError | None = None) -> bytes:
    """Return all data of a call, followed by the payload of its final frame.

    With `past_listing`, raise that error if more data arrives than a listing may have.
    """
    parts = []
    size = 0
    try:
        while (frame := await stream.receive()).kind != Kind.DONE:
            parts.append(frame.payload)
            size += len(frame.payload)
            if past_listing is not None and size > _MAX_LISTING:
                raise past_listing
            await stream.consumed(len(frame.payload))
    finally:
        await stream.abandon()
    parts.append(frame.payload)
    return b"".join(parts)


async def _soon(stream: AgentStream, seconds: float = 30.0) -> bytes:
    """Return the result of a call that an agent answers in time whatever its sandbox does, or raise SilentError."""
    with anyio.move_on_after(seconds):
        return await _result(stream)
    raise SilentError(f"no answer to a call within {seconds:g} s")


async def read_file(client: AgentClient, path: str, max_bytes: int) -> bytes:
    """Return a regular file's content; the agent refuses more than `max_bytes`."""
    return b"".join([piece async for piece in read_pieces(client, path, max_bytes)])


async def write_file(client: AgentClient, path: str, data: bytes, mode: int | None) -> None:
    """Replace a file's content atomically."""
    small = len(data) <= _SMALL_FILE
    arguments = (
        frames.string(path)
        + (_KEEP_MODE if mode is None else mode).to_bytes(4, "big")
        + bytes([not small])
        + frames.string(data if small else b"")
    )
    stream = client.call(_WRITE, arguments)
    try:
        if not small:
            await stream.send(data)
            await stream.finish()
        await stream.receive()
    finally:
        await stream.abandon()


async def put_archive(client: AgentClient, path: str, tar: AsyncIterable[bytes]) -> None:
    """Unpack a tar stream into a folder."""
    stream = client.call(_PUT, frames.string(path))
    try:
        async for chunk in tar:
            if stream.finished:
                break
            await stream.send(chunk)
        await stream.finish()
        await stream.receive()
    finally:
        await stream.abandon()


def get_archive(client: AgentClient, path: str) -> AsyncGenerator[bytes, None]:
    """Yield a path as a tar stream."""
    return _pieces(client.call(_GET, frames.string(path), most=inf))


def read_pieces(client: AgentClient, path: str, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield a regular file's content; the agent refuses more than `max_bytes`."""
    arguments = frames.string(path) + max_bytes.to_bytes(8, "big")
    return _pieces(client.call(_READ, arguments, most=max_bytes))


async def _pieces(stream: AgentStream) -> AsyncGenerator[bytes, None]:
    try:
        while (frame := await stream.receive()).kind != Kind.DONE:
            yield frame.payload
            await stream.consumed(len(frame.payload))
        if frame.payload:
            yield frame.payload
    finally:
        await stream.abandon()


def _info(fields: Fields) -> FileInfo:
    path = fields.text()
    kind, size, mode, mtime_ns = fields.info()
    return FileInfo(path, _FILE_TYPES.get(kind, FileType.OTHER), size, mode, mtime_ns / 1e9)


async def stat(client: AgentClient, path: str) -> FileInfo:
    """Describe one path."""
    return _info(Fields(await _result(client.call(_STAT, frames.string(path)))))


async def list_dir(client: AgentClient, path: str) -> list[FileInfo]:
    """Return a folder's entries, sorted by path."""
    too_many = CallError(
        errno.EFBIG,
        f"{path}: more than {_MAX_ENTRIES} entries or {_MAX_LISTING} bytes of metadata; list a part of it "
        "with find(1)",
    )
    fields = Fields(await _result(client.call(_LIST, frames.string(path), most=inf), too_many))
    entries: list[FileInfo] = []
    while fields:
        if len(entries) == _MAX_ENTRIES:
            raise too_many
        entries.append(_info(fields))
    return sorted(entries, key=lambda info: info.path)


async def remove(client: AgentClient, path: str, recursive: bool) -> None:
    """Remove a path."""
    await _result(client.call(_REMOVE, frames.string(path) + bytes([recursive])))


async def renew(client: AgentClient, lifetime: float) -> None:
    """Move the deadline to `lifetime` seconds from now."""
    await _soon(client.call(_RENEW, struct.pack(">d", lifetime)))


async def pause(client: AgentClient, paused: bool, *, while_connected: bool = False) -> None:
    """Stop all programs of the sandbox, or let them go on.

    With `while_connected` they also go on when the connection of this client ends.
    """
    await _soon(client.call(_PAUSE, bytes([2 if paused and while_connected else paused])), 15)


async def logs(client: AgentClient) -> bytes:
    """Return the newest output of the main command."""
    return await _soon(client.call(_LOGS, most=_MOST_LOGS))


async def wait(client: AgentClient) -> int:
    """Wait for the main command to exit and return its exit status."""
    return Fields(await _result(client.call(_WAIT))).u32()


@cache
def _server() -> bytes:
    return resources.files("sandboxkit.providers._agent").joinpath("interpreter.py").read_bytes()


async def start_interpreter(client: AgentClient, interpreter: Interpreter) -> None:
    """Start the interpreter that jobs are forked from, as `Provider.start_interpreter` specifies."""
    arguments = (
        frames.string(interpreter.program)
        + frames.strings(interpreter.preload)
        + frames.string(_server())
        + frames.string(interpreter.setup)
    )
    try:
        await _soon(client.call(_INTERPRETER, arguments), 150)
    except CallError as error:
        raise _not_started(error) from error


@dataclass(frozen=True, slots=True)
class ProcessorUsage:
    """The CPU time (ns) that a sandbox has used since its start, over all its jobs."""

    processor: int
    """Nanoseconds of all processes except the agent."""
    agent: int
    """Nanoseconds of the agent."""
    exact: bool
    """Whether a control group counted `processor`; see PROTOCOL.md for the sum that is used otherwise."""
    starved: int | None
    """Nanoseconds in which a process was ready to run without a CPU; None if it is unknown."""

    @classmethod
    def of(cls, end: bytes) -> "ProcessorUsage":
        """Decode the last fields of a result."""
        processor, agent, exact, starved = frames.unpack(_USED, end)
        return cls(processor, agent, bool(exact), None if starved == _UNKNOWN else starved)


async def reset(client: AgentClient) -> tuple[list[str], ProcessorUsage]:
    """Reset the sandbox to its state at the first call.

    Returns a list of what could not be reset, empty on success, and the usage so far.
    """
    fields = Fields(await _soon(client.call(_RESET), 60))
    return fields.texts(), ProcessorUsage.of(fields.rest())


@dataclass(frozen=True, slots=True)
class Stats:
    """The result of a STATS call; see PROTOCOL.md."""

    processes: int
    resident: int
    """Resident memory in bytes, the agent's included."""
    used: ProcessorUsage


async def stats(client: AgentClient) -> Stats:
    """Return the sandbox's present and past resource usage."""
    result = await _soon(client.call(_STATS))
    processes, resident = frames.unpack(_RUNNING, result[: _RUNNING.size])
    return Stats(processes, resident, ProcessorUsage.of(result[_RUNNING.size :]))


async def execute_each(
    client: AgentClient, command: Command, series: CommandSeries
) -> list[ProcessResult]:
    """Run a command as `Box.exec_each` specifies. Raises CallError with ENOSYS for an old agent."""
    client.require(_RUNS_SERIES)
    records = bytearray()

    async def collect(_: StreamName, data: bytes) -> None:
        records.extend(data)

    await execute(client, command, collect, series=series)
    return list(_results(command, series.inputs, Fields(bytes(records))))


def _results(
    command: Command, inputs: tuple[CommandInput, ...], fields: Fields
) -> Iterator[ProcessResult]:
    for given in inputs:
        if not fields:
            return
        ended = exit_of(fields.fixed(_EXIT.size))
        duration = int.from_bytes(fields.fixed(8), "big") / 1e9
        stdout, stderr = fields.data(), fields.data()
        argv = (*command.argv, *given.args)
        yield ProcessResult(
            argv, ended.status, stdout, stderr, False, duration, ended.ending, ended.usage
        )
