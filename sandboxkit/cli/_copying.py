"""`Sandbox.upload` and `Sandbox.download` with a progress line."""

import os
import posixpath
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sandboxkit import FileInfo, FileType, Operation, Sandbox, _arguments
from sandboxkit._sandbox import MAX_DOWNLOAD, MAX_DOWNLOAD_FILES
from sandboxkit.cli._progress import ProgressLine
from sandboxkit.errors import ConfigurationError, SandboxFileError
from sandboxkit.transfers import Transfer, _archive


def send(sandbox: Sandbox, source: str, target: str, progress: ProgressLine) -> Operation[None]:
    """Copy a file to the path `target`, or a folder's contents into that folder."""
    target = _arguments.path(target)
    folder, name = (target, None) if os.path.isdir(source) else posixpath.split(target)
    if name == "":
        raise ConfigurationError(f"{target!r} is a folder; add the file's name to it")

    async def upload(sandbox_id: str) -> None:
        async with aclosing(_counted(_archive.pack(source, name), progress)) as tar:
            await sandbox._provider.put_archive(sandbox_id, folder, tar)

    return sandbox._call(upload)


def fetch(
    sandbox: Sandbox, info: FileInfo, target: str, progress: ProgressLine
) -> Operation[Transfer]:
    """Copy the file or folder that `info` describes to the path `target`."""
    path = info.path
    if info.type not in (FileType.FILE, FileType.DIRECTORY):
        raise SandboxFileError(f"{path!r} is a {info.type}; not downloaded", path=path)
    single = info.type is FileType.FILE
    limits = _archive.DownloadLimits(MAX_DOWNLOAD, MAX_DOWNLOAD_FILES)

    async def download(sandbox_id: str) -> Transfer:
        tar = _counted(sandbox._provider.get_archive(sandbox_id, path), progress)
        return await _archive.unpack(tar, target, single=single, limits=limits)

    return sandbox._call(download)


async def _counted(
    tar: AsyncGenerator[bytes, None], progress: ProgressLine
) -> AsyncGenerator[bytes, None]:
    async with aclosing(tar):
        async for piece in tar:
            progress.add(len(piece))
            yield piece
