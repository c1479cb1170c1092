"""Upload and download of files and folders, as one tar stream each way."""

import errno
import io
import os
import posixpath
import tarfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from sandboxkit._work import leaf_of
from sandboxkit.errors import ConfigurationError, SandboxFileError
from sandboxkit.transfers._untar import ArchiveError, Member, Read, members
from sandboxkit.types import FileInfo, FileType

if TYPE_CHECKING:
    from sandboxkit.provider import Provider

_CHUNK = 1 << 18
_MAX_DEPTH = 64
_MAX_NAME = 2048
"""Bytes: less than half of Linux's PATH_MAX, so that a downloaded path can be used and removed."""
_MAX_SKIPPED = 8 << 20
_BAD_NAMES = frozenset(
    {
        errno.EEXIST,
        errno.EILSEQ,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
    }
)
"""The errors that a member's name can cause on this machine."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The result of a download."""

    files: int
    bytes: int
    skipped: tuple[str, ...]
    """Members that were skipped because they are links or special files, or cannot be read there."""


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Limits on what a download writes to this machine."""

    max_bytes: int
    max_files: int
    links: bool = False
    """Whether links are made rather than skipped. Whoever reads the target must not follow them blindly."""


Seen = Callable[[int], None]
"""Is called with the size (bytes) of each piece that was sent or received."""


def unseen(size: int) -> None:
    """Ignore the progress."""


async def upload(
    provider: "Provider",
    sandbox_id: str,
    local: str,
    folder: str,
    name: str | None,
    seen: Seen = unseen,
) -> None:
    """Send a file, as `name`, or with None a folder's contents, into the sandbox's `folder`."""
    async with aclosing(pack(local, name, seen)) as tar:
        await provider.put_archive(sandbox_id, folder, tar)


async def pack(local: str, name: str | None, seen: Seen = unseen) -> AsyncGenerator[bytes, None]:
    """Stream a tar of the local file as member `name`, or, with `name` None, of a folder's contents.

    Pieces are made on demand. A generator that is not exhausted holds only an open file, until it
    is closed.
    """
    with closing(_archive(local, name)) as pieces:
        while piece := await anyio.to_thread.run_sync(next, pieces, b""):
            seen(len(piece))
            yield piece


async def receive(
    provider: "Provider", sandbox_id: str, remote: str, local: str, limits: DownloadLimits
) -> Transfer:
    """Copy a file or a folder's contents from a sandbox; see `Sandbox.download`."""
    info = await provider.stat(sandbox_id, remote)
    if info.type is FileType.FILE and os.path.isdir(local):
        local = os.path.join(local, posixpath.basename(remote))
    return await fetch(provider, sandbox_id, info, local, limits)


async def fetch(
    provider: "Provider",
    sandbox_id: str,
    info: FileInfo,
    local: str,
    limits: DownloadLimits,
    seen: Seen = unseen,
) -> Transfer:
    """Copy the file that `info` describes to the path `local`, or a folder's contents into that folder."""
    if info.type not in (FileType.FILE, FileType.DIRECTORY):
        raise SandboxFileError(f"{info.path!r} is a {info.type}; not downloaded", path=info.path)
    tar = provider.get_archive(sandbox_id, info.path)
    single = info.type is FileType.FILE
    return await unpack(tar, local, single=single, limits=limits, seen=seen)


async def unpack(
    tar: AsyncGenerator[bytes, None],
    target: str,
    *,
    single: bool,
    limits: DownloadLimits,
    seen: Seen = unseen,
) -> Transfer:
    """Extract an untrusted tar: skip links and special files, and refuse paths outside the target.

    With `single`, the only member becomes the file `target`; otherwise `target` is the folder
    that receives the members. Raises SandboxFileError for an exceeded limit, a hostile name or a
    broken archive; failures of this machine, such as a full disk, are OSErrors.
    """
    send, receive = anyio.create_memory_object_stream[bytes](8)
    result: list[Transfer] = []

    async def extracted() -> None:
        with receive:
            arguments = (_Reader(receive).read, target, single, limits)
            # A thread outside the shared pool, because a stalled sandbox blocks it.
            own = anyio.CapacityLimiter(1)
            result.append(await anyio.to_thread.run_sync(extract, *arguments, limiter=own))

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(extracted)
            async with aclosing(tar), send:
                async for chunk in tar:
                    seen(len(chunk))
                    try:
                        await send.send(chunk)
                    except anyio.BrokenResourceError:
                        break  # the extractor is done; only padding follows
    except ExceptionGroup as errors:  # what `except*` raises is a group before Python 3.11.4
        raise leaf_of(errors) from None
    return result[0]


def _archive(local: str, name: str | None) -> Generator[bytes, None, None]:
    """Yield the archive in pieces of at least `_CHUNK` bytes, except for the last."""
    piece = bytearray()
    left = _entries(local, "") if name is None else [(os.path.realpath(local), name)]
    for part in _parts_of(left, tarfile.PAX_FORMAT):
        piece += part
        if len(piece) >= _CHUNK:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + bytes(2 * tarfile.BLOCKSIZE)


def _parts_of(left: list[tuple[str, str]], form: Literal[1, 2]) -> Iterator[bytes]:
    """Yield a tar, without its end, of paths with their names, and of what is below them; the last comes first.

    `form` is a format of `tarfile`.
    """
    # Only makes headers and tracks hard links to earlier files; nothing is written to it.
    tar = tarfile.TarFile(fileobj=io.BytesIO(), mode="w", format=form)
    while left:
        path, called = left.pop()
        member = _anonymous(path, tar.gettarinfo(path, called))
        yield member.tobuf(form, "utf-8", "surrogateescape")
        if member.isdir():
            left += _entries(path, "" if called == "." else f"{called}/")
        elif member.isreg():
            yield from _content(path, member.size)


def stored(folder: Path) -> Iterator[bytes]:
    """Yield a tar of a stored dataset, whose modes and times are those to be shown."""
    # GNU's format keeps the bytes of names that are not UTF-8.
    yield from _parts_of([(str(folder), ".")], tarfile.GNU_FORMAT)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _entries(folder: str, prefix: str) -> list[tuple[str, str]]:
    """Return the path and name of each entry; the last one comes first in the archive."""
    names = sorted(os.listdir(folder), reverse=True)
    return [(os.path.join(folder, name), prefix + name) for name in names]


def _content(path: str, size: int) -> Iterator[bytes]:
    left = size
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        while left:
            data = file.read(min(left, _CHUNK))
            if not data:
                raise OSError(f"{path!r} became shorter while it was uploaded")
            left -= len(data)
            yield data
    yield bytes(-size % tarfile.BLOCKSIZE)


# gettarinfo() returns None for a socket, which typeshed does not declare.
def _anonymous(path: str, member: tarfile.TarInfo | None) -> tarfile.TarInfo:
    known = member is not None and (
        member.isreg() or member.isdir() or member.issym() or member.islnk()
    )
    if member is None or not known:
        raise ConfigurationError(f"cannot upload {path!r}: it is a device, socket or pipe")
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


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


def extract(read: Read, target: str, single: bool, limits: DownloadLimits) -> Transfer:
    """Extract an untrusted tar from `read`; see `unpack`."""
    folder, name = os.path.split(os.path.abspath(target)) if single else (target, "")
    os.makedirs(folder, exist_ok=True)
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _extract_below(root, name, read, limits)
    except ArchiveError as error:
        raise SandboxFileError(f"it is a broken archive: {error}", path=target) from error
    finally:
        os.close(root)


def _extract_below(root: int, name: str, read: Read, limits: DownloadLimits) -> Transfer:
    """Extract the members below `root`; with `name`, the only member becomes that file."""
    files = size = skipped_size = 0
    skipped: list[str] = []
    archive = members(read, max_bytes=limits.max_bytes, max_files=limits.max_files)
    for count, member in enumerate(archive, 1):
        if count > limits.max_files:
            raise _refused(member.name, f"more than max_files={limits.max_files} members")
        size += member.size
        if size > limits.max_bytes:
            raise _refused(member.name, f"more than max_bytes={limits.max_bytes} bytes")
        if name and (count > 1 or not member.is_file):
            raise _refused(member.name, "the sandbox sent an archive that is not this one file")
        parts = [name] if name else _parts(member.name)
        if not parts:
            continue  # the folder itself
        if member.is_folder:
            os.close(_enter(root, parts))
        elif member.is_file:
            files += 1
            _write(root, parts, member)
        elif limits.links and member.link:
            _link(root, parts, member)
        else:
            skipped.append(member.name)
            skipped_size += len(member.name)
            if skipped_size > _MAX_SKIPPED:
                raise _refused(member.name, "too many links and special files")
    if name and not files:
        raise _refused(name, "the sandbox sent an archive that is not this one file")
    return Transfer(files, size, tuple(skipped))


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _refused(name, "a name that leads out of the target folder")
    if len(parts) > _MAX_DEPTH or len(os.fsencode(name)) > _MAX_NAME:
        raise _refused(name, f"it is more than {_MAX_DEPTH} folders or {_MAX_NAME} bytes deep")
    return parts


def _enter(root: int, parts: list[str]) -> int:
    """Open a folder below `root`, creating missing folders and following no link."""
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
        raise _whose(error, parts) from error
    return current


def _write(root: int, parts: list[str], member: Member) -> None:
    folder = _enter(root, parts[:-1])
    try:
        try:
            os.unlink(parts[-1], dir_fd=folder)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        # Only the execute bit is kept: no setuid, nothing writable by others.
        permissions = 0o755 if member.executable else 0o644
        with os.fdopen(os.open(parts[-1], flags, permissions, dir_fd=folder), "wb") as file:
            while chunk := member.read(_CHUNK):
                file.write(chunk)
    except OSError as error:
        raise _whose(error, parts) from error
    finally:
        os.close(folder)


def _link(root: int, parts: list[str], member: Member) -> None:
    folder, source = _enter(root, parts[:-1]), None
    try:
        if member.is_hard:
            *above, old = _parts(member.link) or [""]
            source = _enter(root, above)
            os.link(old, parts[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        else:
            os.symlink(member.link.partition("\0")[0], parts[-1], dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise _refused(member.name, f"a link to {member.link!r}, which is missing") from error
        raise _whose(error, parts) from error
    finally:
        os.close(folder)
        if source is not None:
            os.close(source)


def _whose(error: OSError, parts: list[str]) -> OSError | SandboxFileError:
    """Return a SandboxFileError if a name from the sandbox clashes or is invalid, else `error`."""
    if error.errno not in _BAD_NAMES:
        return error
    return _refused("/".join(parts), f"{error.strerror}, on this machine")


def _refused(name: str, reason: str) -> SandboxFileError:
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    return SandboxFileError(f"the archive is refused at {shown!r}: {reason}", path=name)
