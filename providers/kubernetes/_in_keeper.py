"""Runs in a pod that mounts a whole claim: fills, lists and removes the datasets and volumes in it.

The provider passes this file's text to the Python of the pod's image, with a command and its arguments.
Each answer is one line of JSON. A folder has its final name only while its content is whole: it is filled
under another name, and renamed before it is removed. Correctness does not depend on locks, which some
shared file systems lack.
"""

import errno
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ROOT = "/storage/sandboxkit"
TIME = 315532800
"""The modification time of a whole dataset's own folder."""
PARTIAL, HIDDEN, REMOVED = ".partial", ".hidden", ".removed"
ACL_VERSION, UNNAMED = 2, 0xFFFFFFFF
FOR_ALL = ((0x01, 7), (0x04, 7), (0x20, 7))


def fill(name: str, keeper: str) -> None:
    """Unpack the tar of stdin as a dataset, unless the claim has it; answer "send" before that."""
    path = folder("datasets", name)
    with turn(path):
        if is_whole(path):
            answer("there")
            return
        partial = folder("datasets", f"{PARTIAL}.{name}.{keeper}")
        answer("send")
        try:
            unpack(partial)
            os.sync()
            try:
                os.rename(partial, path)
            except OSError as error:  # another one was first where there are no locks
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        finally:
            remove(partial)
    answer("filled")


def make(name: str) -> None:
    """Create a volume that users of all sandboxes may write to; harmless for one that exists."""
    path = folder("volumes", name)
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    if os.stat(path).st_mode & 0o777 != 0o777:
        os.chmod(path, 0o777)
    entries = (struct.pack("<HHI", tag, mode, UNNAMED) for tag, mode in FOR_ALL)
    access = struct.pack("<I", ACL_VERSION) + b"".join(entries)
    try:
        # It takes the place of a program's umask, which would keep other users out.
        os.setxattr(path, "system.posix_acl_default", access)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    answer("made")


def show(kind: str) -> None:
    """Answer with the names of the whole datasets, or of the volumes."""
    parent = folder(kind, "")
    answer([name for name in named(parent) if kind == "volumes" or is_whole(parent + name)])


def hide(kind: str, keeper: str, *only: str) -> None:
    """Rename folders, so that no pod that is created from now on mounts them; answer with all hidden ones:
    the present name, the final one, and whether it is whole."""
    parent = folder(kind, "")
    for name in named(parent):
        if name in only or not only:
            rename(parent + name, f"{parent}{HIDDEN}.{name}.{keeper}")
    found = []
    for each in sorted(os.listdir(parent)):
        if each.startswith(HIDDEN) and (final(each) in only or not only):
            found.append((each, final(each), kind == "volumes" or is_whole(parent + each)))
    answer(found)


def end(kind: str, keeper: str) -> None:
    """Give hidden folders their final names again or remove them, and remove what ended pods left.

    Standard input has one line, with the folders to restore, those to remove, and the pods that run.
    """
    parent = folder(kind, "")
    answer("send")
    restored, removed, living = json.loads(sys.stdin.readline())
    for each in restored:
        rename(parent + each, parent + final(each))
    for each in removed:
        # Renamed first: another process may be about to restore it.
        rename(parent + each, f"{parent}{REMOVED}.{each.strip('.')}.{keeper}")
        remove(f"{parent}.lock.{final(each)}")
    for each in os.listdir(parent):
        left = each.startswith(PARTIAL) and each.rpartition(".")[2] not in living
        if left or each.startswith(REMOVED):
            remove(parent + each)
    answer("ended")


def final(hidden: str) -> str:
    """Return the final name of a hidden folder."""
    return hidden.rpartition(".")[0].rpartition(".")[2]


def remove(path: str) -> None:
    """Remove what is at a path, if anything is. Folders may forbid it, or be nested very deeply."""
    if os.path.lexists(path):
        subprocess.call(["chmod", "-R", "u+rwX", "--", path])
        subprocess.check_call(["rm", "-rf", "--", path])


def folder(kind: str, name: str) -> str:
    """Return a path in the claim, whose parent folder is made."""
    os.makedirs(os.path.join(ROOT, kind), mode=0o755, exist_ok=True)
    return os.path.join(ROOT, kind, name)


def named(parent: str) -> list[str]:
    """Return the final names of datasets or volumes, sorted."""
    return sorted(name for name in os.listdir(parent) if re.match("[a-z0-9][a-z0-9-]*$", name))


def rename(path: str, to: str) -> None:
    """Rename a folder; do nothing if another process has just done so, or if `to` exists with content."""
    try:
        os.rename(path, to)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise


def is_whole(path: str) -> bool:
    """Whether a dataset is there. A node makes an empty folder for a pod that mounts a missing one."""
    try:
        return bool(os.listdir(path)) or os.stat(path).st_mtime == TIME
    except FileNotFoundError:
        return False


def unpack(path: str) -> None:
    """Unpack the tar of stdin into a new folder, with its modes and times."""
    os.mkdir(path)
    with tarfile.open(
        fileobj=WholeTar(),  # type: ignore[call-overload]  # reading is all that a stream needs
        mode="r|",
        bufsize=1 << 20,
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        tar.extraction_filter = lambda member, _: member
        tar.extractall(path)
        for member in tar:
            if member.issym():
                link = os.path.join(path, member.name)
                os.utime(link, (TIME, TIME), follow_symlinks=False)
    os.utime(path, (TIME, TIME))


class WholeTar:
    """Standard input, unbuffered, because a buffered reader would wait for more than the tar has.

    It never ends before the tar does, unless the client has gone: tarfile alone would take a tar that ends
    between two members for a whole one.
    """

    def read(self, size: int) -> bytes:
        """Return some bytes. Raises EOFError at the end."""
        data = os.read(0, size)
        if not data:
            raise EOFError("the client has gone")
        return data


@contextmanager
def turn(path: str) -> Iterator[None]:
    """Wait until no other process fills this dataset, where the file system has locks."""
    parent, name = os.path.split(path)
    lock = os.open(os.path.join(parent, ".lock." + name), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        yield
    finally:
        os.close(lock)


def answer(value: object) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


COMMANDS: dict[str, Callable[..., None]] = {
    "fill": fill,
    "make": make,
    "show": show,
    "hide": hide,
    "end": end,
}

if __name__ == "__main__":
    try:
        COMMANDS[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        answer({"errno": error.errno, "text": str(error)})
