"""Large files and archives: moved by Daytona's own file calls, which need no terminal."""

import secrets
from collections.abc import AsyncIterable, AsyncIterator

import anyio

from sandboxkit.errors import SandboxError, SandboxFileError, SandboxFileNotFoundError
from sandboxkit.provider import Provider, StreamName
from sandboxkit.providers.daytona._account import NAME
from sandboxkit.providers.daytona._machine import Machine
from sandboxkit.types import Command

__all__ = ["SMALL", "read", "unpack", "write"]

SMALL = 1 << 16
"""Bytes up to which a command's own streams are quicker."""
_PIECE = 1 << 18
_NOT_FOUND, _REFUSED, _LARGE = 44, 45, 46
# The path is always "$1", never part of a script.
_READ = f"""
[ -e "$1" ] || exit {_NOT_FOUND}
[ -f "$1" ] || {{ echo "not a regular file" >&2; exit {_REFUSED}; }}
[ -r "$1" ] && [ "$(stat -L -c %s -- "$1")" -gt {SMALL} ] && exit {_LARGE}
exec head -c {SMALL + 1} -- "$1"
"""
# "$2" is what was uploaded.
_WRITE = f"""
set -e
[ ! -d "$1" ] || {{ echo "is a directory" >&2; exit {_REFUSED}; }}
mkdir -p -- "$(dirname -- "$1")"
temp="$1.sandboxkit.$$"
trap 'rm -f -- "$temp"' EXIT
mv -f -- "$2" "$temp"
mode=$3
[ -n "$mode" ] || mode=$(stat -L -c %a -- "$1" 2>/dev/null || echo 644)
chmod "$mode" -- "$temp"
mv -f -- "$temp" "$1"
"""
_UNPACK = """
set -e
mkdir -p -- "$1"
tar -x -p --no-same-owner -f "$2" -C "$1"
rm -f -- "$2"
"""


async def read(provider: Provider, machine: Machine, path: str, max_bytes: int) -> bytes:
    """See `Provider.read_file`."""
    status, data = await _run(provider, machine, path, _READ)
    if status == _LARGE:
        data = await machine.download(path, max_bytes + 1)
    if len(data) > max_bytes:
        raise SandboxFileError(
            f"{path!r} has more than max_bytes={max_bytes} bytes",
            path=path,
            provider=NAME,
            sandbox_id=machine.id,
        )
    return data


async def write(
    provider: Provider, machine: Machine, path: str, data: bytes, mode: int | None
) -> None:
    """See `Provider.write_file`."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), _PIECE):
            yield data[start : start + _PIECE]

    text = "" if mode is None else f"{mode:o}"
    await _upload_and_run(provider, machine, path, pieces(), _WRITE, text)


async def unpack(
    provider: Provider, machine: Machine, path: str, tar: AsyncIterable[bytes]
) -> None:
    """See `Provider.put_archive`."""
    await _upload_and_run(provider, machine, path, tar, _UNPACK)


async def _upload_and_run(
    provider: Provider,
    machine: Machine,
    path: str,
    data: AsyncIterable[bytes],
    script: str,
    *arguments: str,
) -> None:
    """Run a script on uploaded data, of which nothing else is left."""
    uploaded = f"/tmp/.sandboxkit-{secrets.token_hex(8)}"
    try:
        await machine.upload(uploaded, data)
        await _run(provider, machine, path, script, uploaded, *arguments)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            try:
                await machine.run_script(("rm", "-f", "--", uploaded), "remove an upload")
            except SandboxError as failure:
                error.add_note(f"and {uploaded} could not be removed: {failure}")
        raise


async def _run(
    provider: Provider, machine: Machine, path: str, script: str, *arguments: str
) -> tuple[int, bytes]:
    """Run a script; return its exit status, which is 0 or _LARGE, and its output."""
    said: dict[StreamName, list[bytes]] = {"stdout": [], "stderr": []}

    async def output(stream: StreamName, chunk: bytes) -> None:
        said[stream].append(chunk)

    command = Command(("sh", "-c", script, "sh", path, *arguments))
    status = await provider.exec(machine.id, command, output)
    if status == _NOT_FOUND:
        raise SandboxFileNotFoundError(
            f"no file {path!r} in the sandbox", path=path, provider=NAME, sandbox_id=machine.id
        )
    if status not in (0, _LARGE):
        reason = b"".join(said["stderr"])[-500:].decode(errors="replace").strip()
        raise SandboxFileError(
            f"{path!r}: {reason or f'failed with status {status}'}",
            path=path,
            provider=NAME,
            sandbox_id=machine.id,
        )
    return status, b"".join(said["stdout"])
