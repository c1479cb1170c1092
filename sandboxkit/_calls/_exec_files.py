"""Default file operations for providers, built on `exec` of common command-line tools."""

import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio

from sandboxkit.errors import (
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from sandboxkit.types import (
    Command,
    FileInfo,
    FileType,
    ResourceName,
    StdinItem,
    StreamName,
)

# Any: a Box, whose module imports this one.
Runner = Any
MAX_ENTRIES = 50_000
MAX_LISTING = 8 << 20
"""Most bytes read of a directory listing: find(1) runs in the untrusted sandbox."""
_CHUNK = 1 << 18
_MAX_REASON = 500
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
_RENAME = (
    f'[ -e "$1" ] || [ -L "$1" ] || exit {_NOT_FOUND}; '
    f'[ ! -d "$2" ] || {{ echo "$2 is a folder" >&2; exit {_REFUSED}; }}; '
    'mkdir -p -- "$(dirname -- "$2")" && exec mv -f -- "$1" "$2"'
)
_ULIMITS: dict[ResourceName, tuple[str, int]] = {
    "core": ("c", 512),
    "cpu": ("t", 1),
    "fsize": ("f", 512),
    "stack": ("s", 1024),
}
"""The options of the shell's ulimit, and their units."""
_FORMAT = r"%y %s %m %T@ %p\0"
_TYPES = {"f": FileType.FILE, "d": FileType.DIRECTORY, "l": FileType.SYMLINK}


async def workdir(box: Runner) -> str:
    """See `Box.workdir`."""
    return (await _sh(box, "pwd", ".", most=_MAX_REASON)).decode().rstrip("\n")


async def read_file(box: Runner, path: str, max_bytes: int) -> bytes:
    """See `Box.read_file`."""
    more = max_bytes + 1
    data = await _sh(box, _READ, path, str(more), most=more)
    if len(data) > max_bytes:
        raise SandboxFileError(f"{path!r} has more than max_bytes={max_bytes} bytes", path=path)
    return data


async def write_file(box: Runner, path: str, data: bytes, mode: int | None) -> None:
    """See `Box.write_file`."""

    async def content() -> AsyncGenerator[StdinItem, None]:
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]

    text = "" if mode is None else f"{mode:o}"
    await _sh(box, _WRITE, path, text, stdin=content())


def limited_by_shell(command: Command) -> Command:
    """Return a command without a setup, whose shell sets the setup's limits and runs `command`."""
    if command.setup is None:
        return command
    script = "".join(
        part for name, pair in command.setup.rlimits.items() for part in _ulimits(name, *pair)
    )
    argv = ("/bin/sh", "-c", f'{script}exec "$@"', "sh", *command.argv)
    return replace(command, argv=argv, setup=None)


def _ulimits(name: ResourceName, soft: int | None, hard: int | None) -> Iterator[str]:
    """Yield the shell commands that set one limit, the soft one first: it may not exceed the hard one."""
    option, unit = _ULIMITS[name]
    if soft is not None:
        yield f"ulimit -S -{option} {soft // unit} 2>/dev/null || "
    if soft is not None or hard is None:
        yield f'ulimit -S -{option} "$(ulimit -H -{option})" || exit; '
    if hard is not None:
        which = "-H" if soft is not None else ""
        yield f"ulimit {which} -{option} {hard // unit} || exit; "


async def put_archive(box: Runner, path: str, tar: AsyncIterable[bytes]) -> None:
    """See `Box.put_archive`."""
    await _sh(box, _UNPACK, path, stdin=tar)


async def get_archive(box: Runner, path: str) -> AsyncGenerator[bytes, None]:
    """See `Box.get_archive`."""
    send, receive = anyio.create_memory_object_stream[bytes](8)
    errors: list[SandboxError] = []

    async def run() -> None:
        with send:
            try:
                await _sh(box, _PACK, path, keep=send.send)
            except SandboxError as error:
                errors.append(error)  # raised below, out of the task group's wrapping

    async with anyio.create_task_group() as group, receive:
        group.start_soon(run)
        try:
            async for chunk in receive:
                yield chunk
        except GeneratorExit:
            return  # the task group would wrap it in an ExceptionGroup
        finally:
            group.cancel_scope.cancel()
    if errors:
        raise errors[0]


async def list_dir(box: Runner, path: str) -> list[FileInfo]:
    """See `Box.list_dir`."""
    folder = path.rstrip("/") or "/"
    most = MAX_LISTING + 1
    output = await _sh(box, _LIST, folder, _FORMAT, most=most)
    if len(output) == most or output.count(b"\0") > MAX_ENTRIES:
        raise SandboxFileError(
            f"{path!r} holds more than {MAX_ENTRIES} entries or {MAX_LISTING} bytes of metadata; list a "
            "part of it with find(1)",
            path=path,
        )
    return sorted(_parse(output, path), key=lambda info: info.path)


async def stat(box: Runner, path: str) -> FileInfo:
    """See `Box.stat`."""
    infos = _parse(await _sh(box, _STAT, path, _FORMAT, most=_CHUNK), path)
    if len(infos) != 1:
        raise SandboxFileError(f"{path!r}: the sandbox's find(1) printed no file", path=path)
    return infos[0]


async def remove(box: Runner, path: str, recursive: bool) -> None:
    """See `Box.remove`."""
    await _sh(box, _REMOVE, path, "1" if recursive else "")


async def rename(box: Runner, path: str, to: str) -> None:
    """See `Sandbox.rename`."""
    await _sh(box, _RENAME, path, to)


def _parse(output: bytes, path: str) -> list[FileInfo]:
    infos = []
    for line in output.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        try:
            kind, size, mode, mtime, name = line.split(" ", 4)
            numbers = int(size), int(mode, 8), float(mtime)
        except ValueError as error:
            raise SandboxFileError(
                f"{path!r}: the sandbox's find(1) printed {line[:80]!r}", path=path
            ) from error
        kind_of_file = _TYPES.get(kind, FileType.OTHER)
        infos.append(FileInfo(posixpath.normpath(name), kind_of_file, *numbers))
    return infos


async def _sh(
    box: Runner,
    script: str,
    path: str,
    *arguments: str,
    stdin: AsyncIterable[StdinItem] | None = None,
    keep: Callable[[bytes], Awaitable[None]] | None = None,
    most: int = 0,
) -> bytes:
    """Run a shell script on `path` and return the first `most` bytes of its stdout. With the callback
    `keep`, pass all stdout to it and return b"".

    Raises SandboxFileNotFoundError or SandboxFileError for the script's exit statuses.
    """
    stdout = bytearray()
    stderr = bytearray()
    enough = anyio.CancelScope()

    async def output(stream: StreamName, chunk: bytes) -> None:
        if stream == "stderr":
            stderr.extend(chunk)
            del stderr[:-_MAX_REASON]
        elif keep is not None:
            await keep(chunk)
        elif most:
            stdout.extend(chunk[: most - len(stdout)])
            if len(stdout) == most:
                enough.cancel()

    command = Command(("sh", "-c", script, "sh", path, *arguments), stdin=stdin)
    returncode = 0
    with enough:
        try:
            returncode = (await box.exec(command, output)).status
        except OutcomeUnknownError as error:
            # Repeating a file call leaves the same state, so a retry is safe.
            raise ProviderUnavailableError(f"{path!r}: {error}") from error
    if returncode == _NOT_FOUND:
        raise SandboxFileNotFoundError(f"no file {path!r} in the sandbox", path=path)
    if returncode:
        reason = stderr.decode(errors="replace").strip() or f"failed with status {returncode}"
        raise SandboxFileError(f"{path!r}: {reason}", path=path)
    return bytes(stdout)
