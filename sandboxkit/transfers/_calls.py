"""`Sandbox.upload` and `Sandbox.download`."""

import os
import posixpath

from sandboxkit import _arguments
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.transfers import _archive


def upload(
    life: Lifecycle,
    local: str | os.PathLike[str],
    remote: str,
    seen: _archive.Seen = _archive.unseen,
) -> Operation[None]:
    """Upload a file or a folder; see `Sandbox.upload`. `seen` is told of the progress."""
    remote, source = _arguments.path(remote), _arguments.local_path("local", local)
    if not os.path.exists(source):
        raise ConfigurationError(f"cannot upload {source!r}: there is no such file here")
    folder, name = (remote, None) if os.path.isdir(source) else posixpath.split(remote)
    if name == "":
        raise ConfigurationError(f"remote={remote!r} is a folder; add the file's name to it")
    life.refuse_ended()
    sent = life.call(lambda box: _archive.upload(life.provider, box, source, folder, name, seen))
    return Operation(sent, of=life)


def download(
    life: Lifecycle,
    remote: str,
    local: str | os.PathLike[str],
    max_bytes: int,
    max_files: int,
) -> Operation[_archive.Transfer]:
    """Download a file or a folder; see `Sandbox.download`."""
    remote, target = _arguments.path(remote), _arguments.local_path("local", local)
    limits = _archive.DownloadLimits(
        _arguments.size("max_bytes", max_bytes), _arguments.size("max_files", max_files)
    )
    life.refuse_ended()
    received = life.call(lambda box: _archive.receive(life.provider, box, remote, target, limits))
    return Operation(received, of=life)
