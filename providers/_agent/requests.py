"""The requests that an agent answers, one coroutine for each, over an `AgentClient`."""

import errno
import struct
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass

import anyio

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Output
from sandboxkit.providers._agent import frames
from sandboxkit.providers._agent.client import AgentClient, AgentStream, CallError
from sandboxkit.providers._agent.frames import Fields, Kind
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.types import Command, FileInfo, FileType, PtySize, StdinItem

__all__ = [
    "Stats",
    "execute",
    "get_archive",
    "hello",
    "list_dir",
    "logs",
    "put_archive",
    "read_file",
    "remove",
    "renew",
    "stat",
    "stats",
    "wait",
    "write_file",
]

_FLAG_STDIN, _FLAG_PTY = 1, 2
_READ, _WRITE, _STAT, _LIST, _REMOVE, _PUT, _GET, _RENEW, _LOGS, _WAIT, _STATS = range(1, 12)
_KEEP_MODE = 0xFFFFFFFF
_STATS_ANSWER = struct.Struct(">IQQQ?Q")
_UNKNOWN = 0xFFFFFFFFFFFFFFFF
_MAX_ENTRIES, _MAX_LISTING = 50_000, 8 << 20
_FILE_TYPES = {1: FileType.FILE, 2: FileType.DIRECTORY, 3: FileType.SYMLINK}


def hello(config: AgentConfig | None) -> bytes:
    """The first frame's payload: an owner's carries the configuration."""
    config_or_none = config or AgentConfig()
    return b"".join(
        (
            frames.MAGIC,
            frames.PROTOCOL_VERSION.to_bytes(4, "big"),
            bytes([config is not None]),
            frames.strings(f"{name}={value}" for name, value in config_or_none.env.items()),
            frames.strings(config_or_none.command),
        )
    )


async def execute(client: AgentClient, command: Command, output: Output) -> int:
    """Run a command as `Provider.exec` says; its tree is dead if this is cancelled or fails."""
    pty = command.pty or PtySize()
    flags = (_FLAG_STDIN if command.stdin is not None else 0) | (_FLAG_PTY if command.pty else 0)
    payload = b"".join(
        (
            frames.strings(command.argv),
            frames.strings(f"{name}={value}" for name, value in command.env.items()),
            frames.string(command.cwd or ""),
            frames.string(command.user or ""),
            struct.pack(">BHH", flags, pty.rows, pty.cols),
        )
    )
    try:
        stream = client.open(Kind.EXEC, payload)
    except ValueError as error:
        raise ConfigurationError(f"argv and env are too large: {error}") from error
    try:
        if command.stdin is None:
            return await _collect(stream, output)
        status = -1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_feed, stream, command.stdin)
                status = await _collect(stream, output)
                group.cancel_scope.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return status
    except CallError as error:
        raise ConfigurationError(str(error)) from error
    finally:
        await stream.abandon()


async def _collect(stream: AgentStream, output: Output) -> int:
    while True:
        frame = await stream.receive()
        if frame.kind == Kind.EXIT:
            return Fields(frame.payload).u32()
        await output("stdout" if frame.kind == Kind.STDOUT else "stderr", frame.payload)
        await stream.consumed(len(frame.payload))


async def _feed(stream: AgentStream, stdin: AsyncIterable[StdinItem]) -> None:
    async for item in stdin:
        if isinstance(item, PtySize):
            await stream.control(Kind.RESIZE, struct.pack(">HH", item.rows, item.cols))
        else:
            await stream.send(item)
    await stream.finish()


async def _answer(stream: AgentStream, past_listing: CallError | None = None) -> bytes:
    """The payload of a call's answer, and before it whatever data it sent.

    With `past_listing` no more is read than a listing may have; then that is raised.
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


def _call(client: AgentClient, operation: int, arguments: bytes = b"") -> AgentStream:
    return client.open(Kind.CALL, bytes([operation]) + arguments)


async def read_file(client: AgentClient, path: str, max_bytes: int) -> bytes:
    """A regular file's content."""
    return await _answer(_call(client, _READ, frames.string(path) + max_bytes.to_bytes(8, "big")))


async def write_file(client: AgentClient, path: str, data: bytes, mode: int | None) -> None:
    """Replace a file's content at once."""
    small = len(data) <= frames.IN_WINDOW
    arguments = (
        frames.string(path)
        + (_KEEP_MODE if mode is None else mode).to_bytes(4, "big")
        + bytes([not small])
        + frames.string(data if small else b"")
    )
    stream = _call(client, _WRITE, arguments)
    try:
        if not small:
            await stream.send(data)
            await stream.finish()
        await stream.receive()
    finally:
        await stream.abandon()


async def put_archive(client: AgentClient, path: str, tar: AsyncIterable[bytes]) -> None:
    """Unpack a tar stream into a folder."""
    stream = _call(client, _PUT, frames.string(path))
    try:
        async for chunk in tar:
            if stream.finished:
                break
            await stream.send(chunk)
        await stream.finish()
        await stream.receive()
    finally:
        await stream.abandon()


async def get_archive(client: AgentClient, path: str) -> AsyncGenerator[bytes, None]:
    """The tar stream of a path."""
    stream = _call(client, _GET, frames.string(path))
    try:
        while (frame := await stream.receive()).kind != Kind.DONE:
            yield frame.payload
            await stream.consumed(len(frame.payload))
    finally:
        await stream.abandon()


def _info(fields: Fields) -> FileInfo:
    path = fields.text()
    kind, size, mode, mtime_ns = fields.info()
    return FileInfo(path, _FILE_TYPES.get(kind, FileType.OTHER), size, mode, mtime_ns / 1e9)


async def stat(client: AgentClient, path: str) -> FileInfo:
    """One path's description."""
    return _info(Fields(await _answer(_call(client, _STAT, frames.string(path)))))


async def list_dir(client: AgentClient, path: str) -> list[FileInfo]:
    """A folder's entries, sorted by path."""
    too_many = CallError(
        errno.EFBIG,
        f"{path}: more than {_MAX_ENTRIES} entries or {_MAX_LISTING} bytes of them; "
        "look at a part of it with find(1)",
    )
    fields = Fields(await _answer(_call(client, _LIST, frames.string(path)), too_many))
    entries: list[FileInfo] = []
    while fields:
        if len(entries) == _MAX_ENTRIES:
            raise too_many
        entries.append(_info(fields))
    return sorted(entries, key=lambda info: info.path)


async def remove(client: AgentClient, path: str, recursive: bool) -> None:
    """Remove a path."""
    await _answer(_call(client, _REMOVE, frames.string(path) + bytes([recursive])))


async def renew(client: AgentClient, lifetime: float) -> None:
    """Move the deadline to `lifetime` seconds from now."""
    await _answer(_call(client, _RENEW, struct.pack(">d", lifetime)))


async def logs(client: AgentClient) -> bytes:
    """The main command's newest output."""
    return await _answer(_call(client, _LOGS))


async def wait(client: AgentClient) -> int:
    """The main command's exit status, once it has exited."""
    return Fields(await _answer(_call(client, _WAIT))).u32()


@dataclass(frozen=True, slots=True)
class Stats:
    """What an agent says that its sandbox uses; see PROTOCOL.md."""

    processes: int
    resident: int
    """Bytes, the agent's included."""
    processor: int
    """Nanoseconds, without the agent's."""
    agent: int
    exact: bool
    starved: int | None


async def stats(client: AgentClient) -> Stats:
    """What the sandbox uses and has used."""
    answer = await _answer(_call(client, _STATS))
    processes, resident, processor, agent, exact, starved = _STATS_ANSWER.unpack(answer)
    return Stats(
        processes, resident, processor, agent, exact, None if starved == _UNKNOWN else starved
    )
