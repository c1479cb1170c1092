"""Unpacks an image's layers, and writes nothing outside the target even for a hostile layer."""

import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from sandboxkit.providers.local._content import BadLayerError, Stream, members, tar_of
from sandboxkit.providers.local._folders import make_folder

_MAX_MEMBERS = 2_000_000
_MAX_BYTES = 64 << 30
_MAX_DEPTH = 255
"""Folders within folders, which Python can remove by recursion."""
_MAX_LINKS = 40
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadLayerError(f"the name {name!r} leads out of the image")
    return parts


class _Tree:
    """The target folder. Symbolic links are resolved as if it were the root directory.

    Nobody else writes there meanwhile, so a path cannot change between its check and its use.
    """

    def __init__(self, root: Path, owner: tuple[int, int] | None) -> None:
        self.root = str(root)
        self.owner = owner
        self.members = self.bytes = 0

    def count(self, member: tarfile.TarInfo) -> None:
        """Count a member before it is written."""
        self.members += 1
        self.bytes += max(member.size, 0)
        if self.members > _MAX_MEMBERS or self.bytes > _MAX_BYTES:
            raise BadLayerError("it has too many files, or too large ones")

    def own(self, path: str) -> None:
        if self.owner is not None:
            os.chown(path, *self.owner, follow_symlinks=False)

    def folder(self, parts: list[str]) -> str:
        """Return the real path of a folder in the image; missing folders are created."""
        todo = parts[::-1]
        at: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del at[-1:]
                continue
            path = "/".join((self.root, *at, part))
            if os.path.islink(path):
                links += 1
                if links > _MAX_LINKS:
                    raise BadLayerError("too many links")
                target = os.readlink(path)
                if target.startswith("/"):
                    at.clear()
                todo += target.split("/")[::-1]
                continue
            if len(at) == _MAX_DEPTH:
                raise BadLayerError(f"it has more than {_MAX_DEPTH} folders within folders")
            if not os.path.isdir(path):
                if os.path.lexists(path):
                    os.unlink(path)
                make_folder(path)
                self.own(path)
            at.append(part)
        return "/".join((self.root, *at))

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def unpack(layers: Iterable[Stream], root: Path, owner: tuple[int, int] | None) -> None:
    """Unpack layers one over the other, without device nodes. Raises BadLayerError, BadImageError and TarError.

    All files belong to `owner`, or to this process's user if it is None: in an overlay a sandbox's
    user can change only files of its own.
    """
    tree = _Tree(root, owner)
    for content in layers:
        _apply(tree, content)


def _apply(tree: _Tree, content: Stream) -> None:
    fresh: set[str] = set()
    tar = tar_of(content)
    for member in members(tar):
        cast(Any, tar).members.clear()  # Any: its types leave this list out, which would grow
        tree.count(member)
        parts = _parts(member.name)
        if not parts:
            continue
        folder = tree.folder(parts[:-1])
        if parts[-1] == _OPAQUE:
            for entry in os.scandir(folder):
                if entry.path not in fresh:
                    tree.remove(entry.path)
            continue
        if parts[-1].startswith(_WHITEOUT):
            hidden = parts[-1].removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise BadLayerError(f"the name {member.name!r} is not valid")
            tree.remove(f"{folder}/{hidden}")
            continue
        path = f"{folder}/{parts[-1]}"
        _put(tree, tar, member, path)
        fresh.add(path)


def _put(tree: _Tree, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    if member.isdir():
        if os.path.islink(path) or not os.path.isdir(path):
            tree.remove(path)
            os.mkdir(path)
        os.chmod(path, member.mode & 0o777 | 0o700)
    elif member.issym():
        tree.remove(path)
        os.symlink(member.linkname, path)
    elif member.islnk():
        parts = _parts(member.linkname)
        if not parts:
            raise BadLayerError(f"{member.name!r} links to nothing")
        source = f"{tree.folder(parts[:-1])}/{parts[-1]}"
        tree.remove(path)
        try:
            os.link(source, path, follow_symlinks=False)
        except OSError as error:
            raise BadLayerError(
                f"{member.name!r} cannot link to {member.linkname!r}: {error.strerror}"
            ) from error
    elif member.isfile():
        tree.remove(path)
        content = tar.extractfile(member)
        assert content is not None
        with content, open(path, "xb") as target:
            shutil.copyfileobj(content, target, 1 << 20)
        os.chmod(path, member.mode & 0o777 | 0o600)
    else:
        return
    tree.own(path)
