"""Task folders of somebody else, for the tests."""

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxkit.integrations.swe import Task
from sandboxkit.transfers import _archive

CANARY = "canary-of-this-machine"
SECONDS = 20


@contextmanager
def in_time() -> Iterator[None]:
    """Fail if the block hangs, as a read of a pipe does."""

    def late(*_: object) -> None:
        raise AssertionError(f"it took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write(folder: Path, **files: str) -> Path:
    for name, text in {"instruction.md": "Do.", "tests/test.sh": "true", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def link(folder: Path, name: str, target: str | Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def packed(task: Task) -> bytes:
    """All that a sandbox may get of a task."""
    folders = [each for each in (task.tests, task.seeds) if each is not None]
    texts = f"{task.instruction}{task.setup}{task.env}{task.test_env}".encode()
    return texts + b"".join(b"".join(_archive._archive(str(each), None)) for each in folders)


def put(folder: Path, outside: Path, kind: str, name: str, content: str = "") -> None:
    """Put something of a kind into a task's folder. OUT stands for the folder outside, HOME for the user's."""
    content = content.replace("OUT", str(outside)).replace("HOME", str(Path.home()))
    if kind == "link":
        return link(folder, name, content)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            here = os.open(path.parent, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
        case "folder":
            path.mkdir(exist_ok=True)
        case "terabyte":
            path.touch()
            os.truncate(path, 1 << 40)
        case _:
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
