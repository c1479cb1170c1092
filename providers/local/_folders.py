"""Folders that a sandbox's user may enter, whatever the umask of the program that makes them."""

import os
from pathlib import Path


def make_folder(path: str | Path, *, exist_ok: bool = False) -> None:
    """Make a folder with mode 0755. With `exist_ok` one that is there stays as it is; else FileExistsError."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not exist_ok:
            raise
    else:
        os.chmod(path, 0o755)
