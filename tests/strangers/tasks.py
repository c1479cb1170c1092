"""Task folders of somebody else, for the tests."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
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
    """Write a task folder with these files."""
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


def leading_out(name: str) -> Callable[[Path, Path], None]:
    return lambda folder, outside: link(folder, name, outside / Path(name).name)


def to_outside(name: str, where: str = "") -> Callable[[Path, Path], None]:
    return lambda folder, outside: link(folder, name, f"{outside}{where}")


def pipe(name: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, outside: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def text(name: str, content: str | bytes) -> Callable[[Path, Path], None]:
    def make(folder: Path, outside: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make
