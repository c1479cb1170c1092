"""File calls for providers that have none of their own: built on `exec` of common tools."""

import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from sandboxkit.errors import SandboxFileError, SandboxFileNotFoundError
from sandboxkit.types import Command, FileInfo, FileType, StdinItem

if TYPE_CHECKING:
    from sandboxkit.provider import Provider, StreamName

_CHUNK = 1 << 18
_NOT_FOUND, _REFUSED = 44, 45
# The path is always "$1", never part of a script.
_READ = (
    f'[ -e "$1" ] || exit {_NOT_FOUND}; '
    f'[ -f "$1" ] || {{ echo "not a regular file" >&2; exit {_REFUSED}; }}; exec head -c "$2" -- "$1"'
)
_WRITE = """
set -e
[ ! -d "$1" ] || { echo "is a directory" >&2; exit 45; }
mkdir -p -- "$(dirname -- "$1")"
temp="$1.sandboxkit.$$"
trap 'rm -f -- "$temp"' EXIT
cat > "$temp"
mode="$2"
[ -n "$mode" ] || mode=$(stat -L -c %a -- "$1" 2>/dev/null || echo 644)
chmod "$mode" -- "$temp"
mv -f -- "$temp" "$1"
"""
_UNPACK = 'mkdir -p -- "$1" && exec tar -x -p --no-same-owner -f - -C "$1"'
_PACK = (
    f'[ -e "$1" ] || exit {_NOT_FOUND}; '
    'if [ -d "$1" ]; then exec tar -c -f - -C "$1" .; fi; '
    'exec tar -c -f - -C "$(dirname -- "$1")" -- "$(basename -- "$1")"'
)
_STAT = f'[ -e "$1" ] || [ -L "$1" ] || exit {_NOT_FOUND}; exec find "$1" -maxdepth 0 -printf "$2"'
_LIST = (
    f'[ -e "$1" ] || exit {_NOT_FOUND}; '
    f'[ -d "$1" ] || {{ echo "not a directory" >&2; exit {_REFUSED}; }}; '
    'exec find "$1/" -mindepth 1 -maxdepth 1 -printf "$2"'
)
_REMOVE = (
    f'[ -e "$1" ] || [ -L "$1" ] || exit {_NOT_FOUND}; '
    'if [ "$2" = 1 ]; then exec rm -rf -- "$1"; fi; '
    'if [ -d "$1" ] && [ ! -L "$1" ]; then exec rmdir -- "$1"; fi; exec rm -f -- "$1"'
)
_FORMAT = r"%y %s %m %T@ %p\0"
_TYPES = {"f": FileType.FILE, "d": FileType.DIRECTORY, "l": FileType.SYMLINK}


async def read_file(provider: "Provider", sandbox_id: str, path: str, max_bytes: int) -> bytes:
    """See `Provider.read_file`."""
    data = await _sh(provider, sandbox_id, _READ, path, str(max_bytes + 1))
    if len(data) > max_bytes:
        raise SandboxFileError(f"{path!r} has more than max_bytes={max_bytes} bytes", path=path)
    return data


async def write_file(
    provider: "Provider", sandbox_id: str, path: str, data: bytes, mode: int | None
) -> None:
    """See `Provider.write_file`."""

    async def content() -> AsyncGenerator[StdinItem, None]:
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]

    text = "" if mode is None else f"{mode:o}"
    await _sh(provider, sandbox_id, _WRITE, path, text, stdin=content())


async def put_archive(
    provider: "Provider", sandbox_id: str, path: str, tar: AsyncIterable[bytes]
) -> None:
    """See `Provider.put_archive`."""
    await _sh(provider, sandbox_id, _UNPACK, path, stdin=tar)


async def get_archive(
    provider: "Provider", sandbox_id: str, path: str
) -> AsyncGenerator[bytes, None]:
    """See `Provider.get_archive`."""
    send, receive = anyio.create_memory_object_stream[bytes](8)
    errors: list[SandboxFileError] = []

    async def run() -> None:
        with send:
            try:
                await _sh(provider, sandbox_id, _PACK, path, keep=send.send)
            except SandboxFileError as error:
                errors.append(error)  # raised below, out of the task group's wrapping

    async with anyio.create_task_group() as group, receive:
        group.start_soon(run)
        try:
            async for chunk in receive:
                yield chunk
        finally:
            group.cancel_scope.cancel()
    if errors:
        raise errors[0]


async def list_dir(provider: "Provider", sandbox_id: str, path: str) -> list[FileInfo]:
    """See `Provider.list_dir`."""
    output = await _sh(provider, sandbox_id, _LIST, path.rstrip("/") or "/", _FORMAT)
    return sorted(_parse(output), key=lambda info: info.path)


async def stat(provider: "Provider", sandbox_id: str, path: str) -> FileInfo:
    """See `Provider.stat`."""
    return _parse(await _sh(provider, sandbox_id, _STAT, path, _FORMAT))[0]


async def remove(provider: "Provider", sandbox_id: str, path: str, recursive: bool) -> None:
    """See `Provider.remove`."""
    await _sh(provider, sandbox_id, _REMOVE, path, "1" if recursive else "")


def _parse(output: bytes) -> list[FileInfo]:
    infos = []
    for line in output.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        kind, size, mode, mtime, path = line.split(" ", 4)
        kind_of_file = _TYPES.get(kind, FileType.OTHER)
        infos.append(
            FileInfo(
                posixpath.normpath(path),
                kind_of_file,
                int(size),
                int(mode, 8),
                float(mtime),
            )
        )
    return infos


async def _sh(
    provider: "Provider",
    sandbox_id: str,
    script: str,
    path: str,
    *arguments: str,
    stdin: AsyncIterable[StdinItem] | None = None,
    keep: Callable[[bytes], Awaitable[None]] | None = None,
) -> bytes:
    stdout: list[bytes] = []
    stderr: list[bytes] = []

    async def output(stream: "StreamName", chunk: bytes) -> None:
        if stream == "stderr":
            stderr.append(chunk[:1000])
        elif keep is not None:
            await keep(chunk)
        else:
            stdout.append(chunk)

    command = Command(("sh", "-c", script, "sh", path, *arguments), stdin=stdin)
    returncode = await provider.exec(sandbox_id, command, output)
    if returncode == _NOT_FOUND:
        raise SandboxFileNotFoundError(
            f"no file {path!r} in the sandbox",
            path=path,
            provider=provider.name,
            sandbox_id=sandbox_id,
        )
    if returncode:
        reason = b"".join(stderr)[-500:].decode(errors="replace").strip()
        raise SandboxFileError(
            f"{path!r}: {reason or f'failed with status {returncode}'}",
            path=path,
            provider=provider.name,
            sandbox_id=sandbox_id,
        )
    return b"".join(stdout)
