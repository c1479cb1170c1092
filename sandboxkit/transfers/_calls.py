"""`Sandbox.upload` and `Sandbox.download`."""

import os
import posixpath

from sandboxkit._calls import _arguments
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.errors import ConfigurationError, SandboxFileNotFoundError
from sandboxkit.provider import Box
from sandboxkit.transfers import _archive


def upload(
    life: Lifecycle,
    local: str | os.PathLike[str],
    remote: str,
    seen: _archive.Seen = _archive.unseen,
) -> Operation[None]:
    """Upload a file or a folder; see `Sandbox.upload`. `seen` is told of the progress."""
    remote = _arguments.path(remote, "remote", relative=True)
    source = _arguments.local_path("local", local)
    if not os.path.exists(source):
        raise ConfigurationError(
            f"cannot upload {source!r}: there is no such file on this machine; the call is upload(local, remote)"
        )
    is_folder = os.path.isdir(source)
    if not is_folder and remote.endswith("/"):
        raise ConfigurationError(f"remote={remote!r} is a folder; add the file's name to it")

    async def send(box: Box, place: str) -> None:
        folder, name = (place, None) if is_folder else posixpath.split(place)
        await _archive.upload(box, source, folder, name, seen)

    life.refuse_ended()
    sent = life.on_paths(send, remote, changes=True)
    return Operation(sent, of=life, title=f"upload({source!r}, {remote!r})")


def download(
    life: Lifecycle,
    remote: str,
    local: str | os.PathLike[str],
    max_bytes: int,
    max_files: int,
) -> Operation[_archive.Transfer]:
    """Download a file or a folder; see `Sandbox.download`."""
    remote = _arguments.path(remote, "remote", relative=True)
    target = _arguments.local_path("local", local)
    limits = _archive.DownloadLimits(
        _arguments.size("max_bytes", max_bytes), _arguments.size("max_files", max_files)
    )
    life.refuse_ended()

    async def receive(box: Box, place: str) -> _archive.Transfer:
        try:
            return await _archive.receive(box, place, target, limits)
        except SandboxFileNotFoundError as error:
            error.args = (f"{error}; the call is download(remote, local)",)
            raise

    received = life.on_paths(receive, remote)
    return Operation(received, of=life, title=f"download({remote!r}, {target!r})")
