"""Upload and download of files and folders, as one tar stream each way.

What a sandbox sends is not trusted: every size, name and count is bounded.
"""

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

from sandboxkit._life._work import leaf_of
from sandboxkit.errors import ConfigurationError, SandboxFileError
from sandboxkit.types import FileInfo, FileType

Read = Callable[[int], bytes]
"""Reads at most this many bytes; returns fewer only at the end of the stream."""

_BLOCK = 512
_NOTHING = bytes(_BLOCK)
_MAX_EXTENSION = 64 << 10
_PER_MEMBER = 2 << 10
_MAX_EXTENSIONS = 4
_MAX_DIGITS = 20
_FILES, _FOLDER = (b"0", b"\0", b"7"), b"5"
_LINKS = (b"1", b"2")
_WITHOUT_CONTENT = (*_LINKS, b"3", b"4", b"5", b"6")
_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_EXTENSIONS = (_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK)


class ArchiveError(Exception):
    """The stream is not an archive, ends too early or exceeds a limit; the message says which."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive. `read` its content before advancing to the next member."""

    name: str
    """Decoded with os.fsdecode."""
    is_file: bool
    is_folder: bool
    size: int
    """Size of the content in bytes; 0 for a link, a folder or a special file."""
    executable: bool
    link: str
    """Where a link leads: a symbolic one as it is, a hard one to an earlier member; "" if it is no link."""
    is_hard: bool
    read: Read


def members(read: Read, *, max_bytes: int, max_files: int) -> Iterator[Member]:
    """Yield the members of an archive, up to its end marker.

    Extended headers may take max_bytes + 2 KiB * max_files together and 64 KiB each. Raises
    ArchiveError for more, and for a malformed archive.
    """
    left = max_bytes + max_files * _PER_MEMBER
    name: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    extensions = 0
    while (block := _exactly(read, _BLOCK)) != _NOTHING:
        _check_sum(block)
        kind, stored = block[156:157], _number(block[124:136])
        if kind in _EXTENSIONS:
            extensions, left = extensions + 1, left - _BLOCK - stored
            if stored > _MAX_EXTENSION or left < 0 or extensions > _MAX_EXTENSIONS:
                raise ArchiveError(f"extended headers of at least {stored} bytes")
            text = _exactly(read, _padded(stored))[:stored]
            if kind == _LONG_NAME:
                name = text.partition(b"\0")[0]
            elif kind == _LONG_LINK:
                link = text.partition(b"\0")[0]
            elif kind == _PAX:
                records = _records(text)
                name, link = records.get(b"path", name), records.get(b"linkpath", link)
                if b"size" in records:
                    size = _decimal(records[b"size"])
            continue
        if name is None:
            name = _name(block)
        if kind in _WITHOUT_CONTENT:
            size = 0
        elif size is None:
            size = stored
        content = _Content(read, size)
        is_file = kind in _FILES and not (kind == b"\0" and name.endswith(b"/"))
        if kind not in _LINKS:
            link = b""
        elif link is None:
            link = block[157:257].partition(b"\0")[0]
        executable = bool(_number(block[100:108]) & 0o100)
        kinds, leads = (is_file, kind == _FOLDER), (os.fsdecode(link), kind == _LINKS[0])
        yield Member(os.fsdecode(name), *kinds, size, executable, *leads, content.read)
        content.skip()
        name = link = size = None
        extensions = 0


class _Content:
    def __init__(self, read: Read, size: int) -> None:
        self._read, self._left, self._padding = read, size, _padded(size) - size

    def read(self, size: int) -> bytes:
        data = _exactly(self._read, min(size, self._left))
        self._left -= len(data)
        return data

    def skip(self) -> None:
        while self._left:
            self.read(_MAX_EXTENSION)
        _exactly(self._read, self._padding)


def _exactly(read: Read, size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise ArchiveError("it ends too early")
    return data


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _check_sum(block: bytes) -> None:
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise ArchiveError("a header's checksum is wrong")


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # GNU's binary form, for numbers too large for octal digits
        return int.from_bytes(field[1:])
    digits = field.partition(b"\0")[0].strip() or b"0"
    if digits.strip(b"01234567"):
        raise ArchiveError("a header has no number where one is required")
    return int(digits, 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise ArchiveError("an extended header has no number where one is required")
    return int(digits)


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _records(text: bytes) -> dict[bytes, bytes]:
    """Parse a pax header: each record is its own length, a space, `key=value`, a line feed."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(text):
        digits, space, _ = text[start : start + _MAX_DIGITS].partition(b" ")
        end = start + _decimal(digits)
        key, equals, value = text[start + len(digits) + 1 : end - 1].partition(b"=")
        if not space or not equals or end > len(text) or text[end - 1 : end] != b"\n":
            raise ArchiveError("an extended header is malformed")
        if key.startswith(b"GNU.sparse."):
            raise ArchiveError("a member is stored as a sparse file")
        records[key] = value
        start = end
    return records


if TYPE_CHECKING:
    from sandboxkit.provider import Box

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
    box: "Box",
    local: str,
    folder: str,
    name: str | None,
    seen: Seen = unseen,
) -> None:
    """Send a file, as `name`, or with None a folder's contents, into the sandbox's `folder`."""
    async with aclosing(pack(local, name, seen)) as tar:
        await box.put_archive(folder, tar)


async def pack(local: str, name: str | None, seen: Seen = unseen) -> AsyncGenerator[bytes, None]:
    """Stream a tar of the local file as member `name`, or, with `name` None, of a folder's contents.

    Pieces are made on demand. A generator that is not exhausted holds only an open file, until it
    is closed.
    """
    with closing(_archive(local, name)) as pieces:
        while piece := await anyio.to_thread.run_sync(next, pieces, b""):
            seen(len(piece))
            yield piece


async def receive(box: "Box", remote: str, local: str, limits: DownloadLimits) -> Transfer:
    """Copy a file or a folder's contents from a sandbox; see `Sandbox.download`."""
    info = await box.stat(remote)
    if info.type is FileType.FILE and os.path.isdir(local):
        local = os.path.join(local, posixpath.basename(remote))
    return await fetch(box, info, local, limits)


async def fetch(
    box: "Box",
    info: FileInfo,
    local: str,
    limits: DownloadLimits,
    seen: Seen = unseen,
) -> Transfer:
    """Copy the file that `info` describes to the path `local`, or a folder's contents into that folder."""
    if info.type not in (FileType.FILE, FileType.DIRECTORY):
        raise SandboxFileError(f"{info.path!r} is a {info.type}; not downloaded", path=info.path)
    tar = box.get_archive(info.path)
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
