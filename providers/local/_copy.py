"""Copies a sandbox's files with the standard library alone (see `_copier`), following no link and trusting no name."""

import os
import pickle
import select
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

_DEPTH = 200
"""Folders within folders; each takes three open files while it is copied."""
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(slots=True)
class TreeCopy:
    """A copy of folders with modes, owners, times, `user.` attributes, hard links and holes.

    Sockets and devices are left out; an image's file that one of them replaced counts as deleted. Names are
    opened below descriptors of their folders, so that a program that changes the source meanwhile cannot
    lead the copy elsewhere.
    """

    target: int
    """A descriptor of the folder to copy to."""
    state: str
    """The state folder, in which it lies."""
    skipped: Collection[str]
    """Absolute paths that are left out."""
    folders: Collection[str]
    """Absolute paths that are left out unless they are folders."""
    owner: tuple[int, int] | None
    """Uid and gid of the copies; None leaves them to this process."""
    between: Callable[[], object]
    """Called before each entry, and in large files; it raises to end the copy."""
    below: str | None = None
    """The root of an image. What it has as well is left out, and what it alone has is marked as deleted."""
    bytes: int = 0
    """The bytes of disk that the copy takes, in whole blocks."""
    inodes: int = 0
    """The files, folders and links that the copy has."""
    _links: dict[tuple[int, int], str] = field(default_factory=dict)

    def add(self, source: int, path: str) -> None:
        """Copy the content of the folder `source` to `path`, whose parents exist in the target.

        Raises OSError, and ValueError for what cannot be copied.
        """
        relative = path.strip("/")
        with ExitStack() as stack:
            if relative:
                os.mkdir(relative, 0o700, dir_fd=self.target)
            to = os.open(relative or ".", _FOLDER, dir_fd=self.target)
            stack.callback(os.close, to)
            below = None if self.below is None else os.open(self.below, _FOLDER)
            if below is not None:
                stack.callback(os.close, below)
            self._content(source, to, path.rstrip("/"), below)
            self._finish(source, to, os.fstat(source))

    def _content(self, source: int, to: int, path: str, below: int | None) -> None:
        each, pending = path or "/", []
        try:
            pending.append((source, to, path, self._entries(source, to, below), below, ExitStack()))
            while pending:
                source, to, path, entries, below, opened = pending[-1]
                each = path or "/"
                name = next(entries, None)
                if name is None:
                    if len(pending) > 1 and not self._left_out(source, path, below, pending[-2][1]):
                        self._finish(source, to, os.fstat(source))
                    opened.close()
                    pending.pop()
                    continue
                self.between()
                each = f"{path}/{name}"
                found = os.lstat(name, dir_fd=source)
                if each in self.skipped or (
                    each in self.folders and not stat.S_ISDIR(found.st_mode)
                ):
                    continue
                if not stat.S_ISDIR(found.st_mode):
                    if below is None or not _is_same(found, name, below):
                        self._file(source, to, name, each, found)
                        if below is not None and not _has(name, to) and _has(name, below):
                            self._mark_deleted(name, to)
                    continue
                if len(pending) == _DEPTH:
                    raise ValueError(
                        f"{each!r} lies in more than {_DEPTH} folders, which a snapshot cannot keep"
                    )
                with ExitStack() as opened:
                    try:
                        inner = os.open(name, _FOLDER, dir_fd=source)
                    except PermissionError:
                        if below is None or not _is_same(found, name, below):
                            raise
                        continue  # what only the image's owner may read, no sandbox has changed
                    opened.callback(os.close, inner)
                    os.mkdir(name, 0o700, dir_fd=to)
                    copied = os.open(name, _FOLDER, dir_fd=to)
                    opened.callback(os.close, copied)
                    under = None if below is None else _folder(name, below)
                    if under is not None:
                        opened.callback(os.close, under)
                    names = self._entries(inner, copied, under)
                    pending.append((inner, copied, each, names, under, opened.pop_all()))
        except PermissionError as error:
            raise ValueError(
                f"a snapshot needs {each!r}, which cannot be read or copied: {error.strerror}; make it readable, "
                "in the image if it is the image's"
            ) from error
        except OSError as error:  # which names a descriptor
            raise OSError(error.errno, error.strerror, each) from error
        finally:
            for *_, opened in pending:
                opened.close()

    def _entries(self, folder: int, to: int, below: int | None) -> Iterator[str]:
        """Return the names in a folder, and mark those as deleted that its image alone has."""
        names = _names(folder)
        if names is None:
            return iter(())
        for name in () if below is None else {*os.listdir(below)}.difference(names):
            self._mark_deleted(name, to)
        return iter(names)

    def _mark_deleted(self, name: str, to: int) -> None:
        try:
            os.mknod(name, stat.S_IFCHR, dir_fd=to)  # of device 0: the mark of an overlay
        except PermissionError as error:
            raise ValueError(
                f"the state folder {self.state!r} cannot record that a sandbox has deleted files of its image, "
                "for example because it lies on an overlay, as a container's own files do: set "
                "SANDBOXKIT_STATE_DIR to a folder on a volume"
            ) from error
        self._count(os.lstat(name, dir_fd=to))

    def _left_out(self, source: int, path: str, below: int | None, parent: int) -> bool:
        """Remove the copy of a folder if its image has the same, with the same content."""
        if below is None or not _is_same(os.fstat(source), ".", below):
            return False
        try:
            os.rmdir(path.rpartition("/")[2], dir_fd=parent)
        except OSError:
            return False  # something in it is not the image's
        return True

    def _file(self, source: int, to: int, name: str, path: str, found: os.stat_result) -> None:
        key = found.st_dev, found.st_ino
        if found.st_nlink > 1 and key in self._links:
            first = self._links[key]
            os.link(first, name, src_dir_fd=self.target, dst_dir_fd=to, follow_symlinks=False)
            return
        if stat.S_ISREG(found.st_mode):
            self._regular(source, to, name)
        elif stat.S_ISLNK(found.st_mode) or stat.S_ISFIFO(found.st_mode):
            if is_link := stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=to)
            else:
                os.mkfifo(name, 0o600, dir_fd=to)
            if self.owner is not None:
                os.chown(name, *self.owner, dir_fd=to, follow_symlinks=False)
            if not is_link:
                os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=to)
            times = (found.st_atime_ns, found.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=to, follow_symlinks=False)
            self._count(os.lstat(name, dir_fd=to))
        else:
            return
        if found.st_nlink > 1:
            self._links[key] = path.lstrip("/")

    def _regular(self, source: int, to: int, name: str) -> None:
        with ExitStack() as stack:
            read = os.open(name, _READ, dir_fd=source)
            stack.callback(os.close, read)
            found = os.fstat(read)
            if not stat.S_ISREG(found.st_mode):
                return
            write = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=to
            )
            stack.callback(os.close, write)
            at = 0
            while at < found.st_size:
                try:
                    at = os.lseek(read, at, os.SEEK_DATA)
                except OSError:
                    break  # no more data: the rest is a hole
                end = os.lseek(read, at, os.SEEK_HOLE)
                os.lseek(write, at, os.SEEK_SET)
                while at < end and (sent := os.sendfile(write, read, at, min(end - at, _CHUNK))):
                    at += sent
                    self.between()
                if at < end:
                    break  # the file has become shorter
            os.ftruncate(write, found.st_size)
            self._finish(read, write, found)

    def _finish(self, source: int, to: int, found: os.stat_result) -> None:
        """Give an open file or folder the owner, attributes, mode and times of its source."""
        for name in os.listxattr(source):
            # An overlay would obey its own attributes.
            if name.startswith("user.") and not name.startswith("user.overlay."):
                os.setxattr(to, name, os.getxattr(source, name))
        if self.owner is not None:
            os.fchown(to, *self.owner)
        os.fchmod(to, stat.S_IMODE(found.st_mode))  # after the owner, whose change clears bits
        os.utime(to, ns=(found.st_atime_ns, found.st_mtime_ns))
        self._count(os.fstat(to))

    def _count(self, copy: os.stat_result) -> None:
        self.bytes += copy.st_blocks * 512
        self.inodes += 1


def _is_same(found: os.stat_result, name: str, below: int) -> bool:
    """Return whether an image's file is what a sandbox sees: its time of change cannot be set."""
    try:
        image = os.lstat(name, dir_fd=below)
    except FileNotFoundError:
        return False
    return all(
        getattr(image, field) == getattr(found, field)
        for field in ("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")
    )


def _has(name: str, folder: int) -> bool:
    return os.access(name, os.F_OK, dir_fd=folder, follow_symlinks=False)


def _names(folder: int) -> list[str] | None:
    """Return the names in a folder; None if all are an image's that no sandbox may look up, so none has changed.

    Raises PermissionError if names that cannot be listed may be the sandbox's.
    """
    try:
        return os.listdir(folder)
    except PermissionError:
        try:
            os.lstat("sandboxkit", dir_fd=folder)
        except PermissionError:
            return None
        except FileNotFoundError:
            pass
        raise


def _folder(name: str, parent: int) -> int | None:
    """Open an image's folder; return None if it is none, or not there, or not for this user."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def serve(frozen: Callable[[int, Callable[[], object]], AbstractContextManager[None]]) -> None:
    """Copy what a request on stdin, a socket, asks for, and write the answer to it; end once its owner is gone."""
    request, owner = pickle.load(sys.stdin.buffer), select.poll()
    owner.register(0, select.POLLIN)

    def between() -> None:
        if owner.poll(0):
            raise SystemExit

    answer: object
    try:
        with frozen(request["init"], between):
            answer = copied(between=between, **request)
    except Exception as error:  # noqa: BLE001 - the owner raises it
        answer = error
    os.write(0, pickle.dumps(answer))


# Any: the other options are those of a TreeCopy.
def copied(init: int, places: Sequence[str], root: str, **options: Any) -> tuple[int, int]:
    """Copy folders of a stopped sandbox to below `root`; return the bytes and inodes of the copy."""
    with ExitStack() as stack:
        to = os.open(root, _FOLDER)
        stack.callback(os.close, to)
        copy = TreeCopy(to, **options)
        for path in places:
            source = os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                parts = path.strip("/").split("/")
                for part in parts:
                    inner = os.open(part or ".", _FOLDER, dir_fd=source)
                    os.close(source)
                    source = inner
                for count in range(1, len(parts)):
                    with suppress(FileExistsError):
                        os.mkdir(parent := "/".join((root, *parts[:count])))
                        os.chmod(parent, 0o755)  # whatever the umask is
                copy.add(source, path)
            finally:
                os.close(source)
        return copy.bytes, copy.inodes
