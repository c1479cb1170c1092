"""Makes folders that a sandbox's user may enter, and removes trees of a stranger's files."""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger("sandboxkit.local")


def make_folder(path: str | Path, *, exist_ok: bool = False) -> None:
    """Make a folder with mode 0755, whatever the umask is. With `exist_ok` one that is there stays as it is; else FileExistsError."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not exist_ok:
            raise
    else:
        os.chmod(path, 0o755)


@contextmanager
def _changeable(folder: Path | str, parent: int | None = None) -> Iterator[int]:
    found = os.open(folder, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
        yield found
    finally:
        os.close(found)


def remove_tree(folder: Path) -> None:
    """Remove a folder, unless it is gone, however deep it is and whatever its modes are.

    It never raises: what cannot be removed is logged, and a sweep tries again.

    Each folder moves to the top before it is emptied, so that neither a path nor a recursion grows.
    """
    try:
        with _changeable(folder) as top:
            for name in (pending := ["."]):
                with _changeable(name, top) as inner, os.scandir(f"/proc/self/fd/{inner}") as found:
                    for entry in [*found]:
                        if not entry.is_dir(follow_symlinks=False):
                            os.unlink(entry.name, dir_fd=inner)
                            continue
                        with _changeable(entry.name, inner):
                            pending.append(secrets.token_hex(16))
                            os.rename(entry.name, pending[-1], src_dir_fd=inner, dst_dir_fd=top)
                if name != ".":
                    os.rmdir(name, dir_fd=top)
        folder.rmdir()
    except FileNotFoundError:
        pass  # it is gone, or another process removes it
    except OSError as error:
        _log.warning("%s cannot be removed: %s", folder, error)
