"""A watchdog: when no call has returned for some time, it writes down where everything stands."""

import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.chaos._census import waiting
from tests.chaos.round import below

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

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        barked = 0.0
        while not self._over.wait(_LOOK):
            last = self._last
            if time.monotonic() - last >= self._patience and last != barked:
                barked = last
                self._bark(f"no call has returned for {self._patience:g} s\n{self._stands()}")

    def _stands(self) -> str:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            parts = [file.read(), *waiting()]
        for pid in below([os.getpid(), *self._pids()]):
            with suppress(OSError):  # it has ended
                parts += _kernel(Path(f"/proc/{pid}"))
        return "\n".join(parts)


def _kernel(process: Path) -> list[str]:
    """What each thread of a process does in the kernel, as far as we may see it."""
    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    parts = [f"process {process.name}: {command:.100}"]
    for thread in sorted((process / "task").iterdir(), key=lambda each: int(each.name)):
        state = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        parts.append(f"  thread {thread.name} {state}")
        for name in ("wchan", "syscall", "schedstat", "stack"):
            with suppress(OSError):
                parts.append(f"    {name} {(thread / name).read_text(errors='replace').strip()}")
    return parts
