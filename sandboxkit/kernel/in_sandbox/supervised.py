"""One kernel of a holder: its process, its output, and the cell that it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from sandboxkit.kernel.in_sandbox.ends import VARIABLE, end_all
from sandboxkit.kernel.in_sandbox.kept import STREAMS, OutputBuffer

if TYPE_CHECKING:
    from sandboxkit.kernel.in_sandbox.holder import Holder

PAUSE = 0.05
"""How long (s) output is collected before it is sent."""
MOST_AT_ONCE = 1 << 18
PIECE = 1 << 16


class SupervisedKernel:
    """A kernel from its start to its end; `back`, which the holder sets, is the connection to its process."""

    def __init__(self, holder: Holder, name: int, mark: str) -> None:
        self.holder, self.name, self.mark, self.limit = holder, name, mark, holder.limit
        self.kept = OutputBuffer(self.limit)
        self.number: int | None = None
        self.ready = self.refused = False
        self.sent = 0.0
        self.status: int | None = None
        self.why = ""
        self.streams: dict[int, str] = {}
        self.back: Any = None

    def open_streams(self) -> list[int]:
        """Make pipes for the kernel's standard output and error; return their ends to write to."""
        ends = []
        for name in STREAMS:
            read, write = os.pipe()
            os.set_blocking(read, False)
            self.streams[read] = name
            ends.append(write)
        return ends

    def spawn(
        self, argv: list[str], *, stdin: int, pass_fds: tuple[int, ...], env: dict[str, str]
    ) -> int:
        """Start the kernel's process, in a session of its own."""
        ends = self.open_streams()
        child = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=ends[0],
            stderr=ends[1],
            pass_fds=pass_fds,
            env={**os.environ, VARIABLE: self.mark, **env},
            start_new_session=True,
        )
        child.returncode = 0  # the holder waits for it
        for write in ends:
            os.close(write)
        return child.pid

    def exited(self, status: int) -> None:
        """Record the process's end, from the status that `waitpid` gave."""
        self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def fail(self, why: str, *, refused: bool = False) -> None:
        """Record that the kernel cannot start; `refused`: nothing was tried."""
        self.status, self.why, self.refused = 1, why, refused

    def read_streams(self) -> None:
        """Read printed output, a bounded amount from each stream."""
        for descriptor, name in list(self.streams.items()):
            most = MOST_AT_ONCE
            while most > 0:
                try:
                    data = os.read(descriptor, PIECE)
                except BlockingIOError:
                    break
                if not data:
                    self.holder.unwatch(descriptor)
                    del self.streams[descriptor]
                    break
                most -= len(data)
                self.kept.printed(name, data)

    def interrupt(self) -> None:
        """Send SIGINT to the kernel and its foreground programs."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                send(self.back.pid, signal.SIGINT)
                break
        self.back.wake()

    def end(self) -> bool:
        """Kill the kernel and its processes; return whether none is left.

        The last kernel of a holder takes everything below the holder with it.
        """
        lives = self.back.pid if self.status is None else None
        alone = list(self.holder.kernels.values()) == [self]
        clean = end_all(self.mark, os.getpid() if alone else lives or 0)
        if lives:
            os.kill(lives, signal.SIGKILL)  # even if its code hid its mark
        return clean

    def report_ready(self, backend: str) -> None:
        """Report that the kernel is ready; discard earlier output."""
        self.read_streams()
        self.kept = OutputBuffer(self.limit)
        self.ready = True
        self.send("ready", backend=backend)

    def report_done(self, error: dict[str, Any] | None, count: Any) -> None:
        """Report the end of a cell, with its error, if any, and its execution count."""
        if self.number is None:
            return
        self.read_streams()
        self.send(
            "done",
            number=self.number,
            items=self.kept.finish(),
            error=error and {name: cut(str(each), self.limit // 4) for name, each in error.items()},
            count=count,
            truncated=self.kept.dropped,
        )
        self.kept, self.number = OutputBuffer(self.limit), None

    def report_end(self) -> None:
        """Report the end of the kernel, and end its processes."""
        self.read_streams()
        self.back.receive()
        clean = self.end()
        items, dropped = self.kept.finish(), self.kept.dropped
        if self.ready:
            end = {"status": self.status, "why": self.why, "clean": clean}
            self.send("over", items=items, truncated=dropped, **end)
        else:
            words = "".join(text for kind, text in items if kind in STREAMS).strip()[-2000:]
            why = self.why or f"it ended at once: {words}"
            self.send("failed", why=why, refused=self.refused)

    def cut_off(self) -> None:
        """Handle the end of the message pipe (the kernel ends, or its code closed it): kill the kernel."""
        if self.back.pid is None:
            return self.fail(self.why or "the fork ended before it was ready", refused=self.refused)
        self.why = "its message pipe was closed"
        with contextlib.suppress(OSError):
            os.kill(self.back.pid, signal.SIGKILL)

    def flush(self) -> None:
        """Send collected output, a few times a second."""
        if self.ready and self.kept.ready and time.monotonic() > self.sent + PAUSE:
            self.send("out", items=self.kept.take())
            self.sent = time.monotonic()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message of this kernel to the client."""
        self.holder.send(kind, kernel=self.name, **fields)


def cut(text: str, most: int) -> str:
    """Return the text, or only its head and tail if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}\n...\n{text[-most // 2 :]}"
