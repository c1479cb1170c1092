"""Files and folders between this machine and a sandbox, as one tar stream each way."""

import os
import tarfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import BinaryIO, cast

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sandboxkit.errors import ConfigurationError, SandboxFileError

_CHUNK = 1 << 18
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a download brought."""

    files: int
    bytes: int
    skipped: tuple[str, ...]
    """Members that were left out because they are links or special files."""


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """How much a download may write on this machine."""

    max_bytes: int
    max_files: int


async def pack(local: str, name: str | None) -> AsyncGenerator[bytes, None]:
    """Stream a tar of a local file, called `name`, or of a folder's contents when it is None."""
    send, receive = anyio.create_memory_object_stream[bytes](8)
    try:
        async with anyio.create_task_group() as group, receive:
            group.start_soon(_run_pack, local, name, send)
            async for chunk in receive:
                yield chunk
    except BaseExceptionGroup as errors:
        raise _only(errors) from None


async def unpack(
    tar: AsyncGenerator[bytes, None],
    target: str,
    *,
    single: bool,
    limits: DownloadLimits,
) -> Transfer:
    """Extract a tar from a sandbox, trusting none of it: no links, no specials, no way out.

    With `single`, its only member becomes the file `target`; otherwise `target` is the folder
    that receives the members. Raises SandboxFileError past a limit or for a hostile name.
    """
    send, receive = anyio.create_memory_object_stream[bytes](8)
    result: list[Transfer] = []

    async def extract() -> None:
        with receive:
            source = _Reader(receive)
            result.append(await anyio.to_thread.run_sync(_extract, source, target, single, limits))

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(extract)
            async with aclosing(tar), send:
                async for chunk in tar:
                    try:
                        await send.send(chunk)
                    except anyio.BrokenResourceError:
                        break  # the extractor is done: what follows is padding
    except* Exception as errors:  # noqa: BLE001 - unwrapped and raised again
        raise _only(errors) from None
    return result[0]


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run_pack(local: str, name: str | None, send: MemoryObjectSendStream[bytes]) -> None:
    # When nobody reads on, the reader has its own reason.
    with send, suppress(anyio.BrokenResourceError):
        await anyio.to_thread.run_sync(_pack, local, name, send)


def _pack(local: str, name: str | None, send: MemoryObjectSendStream[bytes]) -> None:
    sink = cast(BinaryIO, _Writer(send))  # tarfile's "w|" mode only calls write()
    with tarfile.open(fileobj=sink, mode="w|", bufsize=_CHUNK, format=tarfile.PAX_FORMAT) as tar:
        if name is not None:
            tar.add(os.path.realpath(local), arcname=name, filter=_anonymous)
            return
        for entry in sorted(os.listdir(local)):
            tar.add(os.path.join(local, entry), arcname=entry, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise ConfigurationError(f"cannot upload {member.name!r}: it is a device, socket or pipe")
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _Writer:
    def __init__(self, send: MemoryObjectSendStream[bytes]) -> None:
        self._send = send

    def write(self, data: bytes) -> int:
        anyio.from_thread.run(self._send.send, bytes(data))
        return len(data)


class _Reader:
    def __init__(self, receive: MemoryObjectReceiveStream[bytes]) -> None:
        self._receive, self._buffer = receive, bytearray()

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                self._buffer += anyio.from_thread.run(self._receive.receive)
            except anyio.EndOfStream:
                break
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def _extract(source: _Reader, target: str, single: bool, limits: DownloadLimits) -> Transfer:
    folder, name = os.path.split(os.path.abspath(target)) if single else (target, "")
    os.makedirs(folder, exist_ok=True)
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    files = size = 0
    skipped: list[str] = []
    try:
        with tarfile.open(fileobj=cast(BinaryIO, source), mode="r|", bufsize=_CHUNK) as tar:
            for count, member in enumerate(tar, 1):
                if count > limits.max_files:
                    raise _refused(member.name, f"more than max_files={limits.max_files} members")
                parts = [name] if single else _parts(member.name)
                if not parts:
                    continue  # the folder itself
                if not (member.isfile() or member.isdir()) or member.issparse():
                    skipped.append(member.name)
                    continue
                size += member.size
                if size > limits.max_bytes:
                    raise _refused(member.name, f"more than max_bytes={limits.max_bytes} bytes")
                if member.isdir():
                    os.close(_enter(root, parts))
                else:
                    files += 1
                    content = tar.extractfile(member)
                    assert content is not None  # it is a regular file
                    _write(root, parts, member.mode, content.read)
    except tarfile.TarError as error:
        raise SandboxFileError(
            f"the sandbox sent a broken archive: {error}", path=target
        ) from error
    finally:
        os.close(root)
    return Transfer(files, size, tuple(skipped))


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or len(parts) > _MAX_DEPTH or "\0" in name:
        raise _refused(name, "a name that leads out of the target folder")
    return parts


def _enter(root: int, parts: list[str]) -> int:
    """Open a folder below `root` without following any link, making what is missing."""
    current = os.dup(root)
    try:
        for part in parts:
            try:
                os.mkdir(part, 0o755, dir_fd=current)
            except FileExistsError:
                pass
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = inner
    except OSError as error:
        os.close(current)
        raise _refused("/".join(parts), f"{error.strerror}, where a folder should be") from error
    return current


def _write(root: int, parts: list[str], mode: int, read: Callable[[int], bytes]) -> None:
    folder = _enter(root, parts[:-1])
    try:
        try:
            os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        # Only the execute bit crosses: no setuid, nothing writable by others.
        permissions = 0o755 if mode & 0o100 else 0o644
        with os.fdopen(os.open(parts[-1], flags, permissions, dir_fd=folder), "wb") as file:
            while chunk := read(_CHUNK):
                file.write(chunk)
    except OSError as error:
        raise SandboxFileError(
            f"cannot write {'/'.join(parts)!r} on this machine: {error}",
            path="/".join(parts),
        ) from error
    finally:
        os.close(folder)


def _refused(name: str, reason: str) -> SandboxFileError:
    return SandboxFileError(f"download refused at {name!r}: {reason}", path=name)
