"""A watchdog: when no call has returned for some time, it writes down where everything stands."""

import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos._census import waiting

__all__ = ["Watchdog", "stands"]

_LOOK = 0.5


class Watchdog:
    """Calls `bark` with a text once in each pause of `patience` seconds without `alive()`.

    `pids` names the processes of the sandboxes, besides this one's own descendants: the text has
    the Python stacks of every thread, what each task waits for, and of every such process and those
    below it what it does in the kernel.
    """

    def __init__(
        self,
        bark: Callable[[str], None],
        *,
        patience: float = 20.0,
        pids: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._bark, self._patience, self._pids = bark, patience, pids
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.longest = 0.0
        """The most seconds without a call that returned."""

    def alive(self) -> None:
        """A call has returned."""
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now

    def __enter__(self) -> Self:
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        barked = 0.0
        while not self._over.wait(_LOOK):
            last = self._last
            if time.monotonic() - last >= self._patience and last != barked:
                barked = last
                self._bark(f"no call has returned for {self._patience:g} s\n{stands(self._pids)}")


def stands(pids: Callable[[], Iterable[int]]) -> str:
    """Where the threads and tasks of this process stand, and then this process and these, with all
    below them, in the kernel: looking at those takes its time."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        parts = [file.read()]
    parts += waiting()
    for pid in below({os.getpid(), *pids()}):
        with suppress(OSError):  # it has ended
            parts += _kernel(Path(f"/proc/{pid}"))
    return "\n".join(parts)


def _kernel(process: Path) -> list[str]:
    """What each thread of a process does in the kernel, as far as we may see it."""
    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    parts = [f"process {process.name}: {command:.100}"]
    for thread in sorted((process / "task").iterdir(), key=lambda each: int(each.name)):
        state = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        output = {name: _read(thread / name) for name in ("wchan", "syscall", "stack", "schedstat")}
        stack = " < ".join(line.partition("] ")[2] for line in output.pop("stack").splitlines())
        rest = ", ".join(f"{name} {text}" for name, text in output.items())
        parts.append(f"  thread {thread.name} {state}: {rest}, stack {stack}")
    return parts


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def below(pids: Iterable[int]) -> list[int]:
    """These processes, and those below them."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(status.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found = list(pids)
    for pid in found:
        found += children.get(pid, ())
    return sorted(set(found))
