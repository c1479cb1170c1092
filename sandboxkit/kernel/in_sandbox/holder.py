"""The supervisor of a kernel: starts it, reads its output, passes cells to it, and ends its processes.

It runs in the sandbox as a process of its own. It writes messages to its standard output, in lines
that begin with a token that the kernel does not know. Its client sends `given`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxkit.kernel.in_sandbox.ends import VARIABLE, end_all
    from sandboxkit.kernel.in_sandbox.kept import STREAMS, OutputBuffer
    from sandboxkit.kernel.in_sandbox.notebook import Notebook
    from sandboxkit.kernel.in_sandbox.piped import PipeProcess

    given: dict[str, Any] = {}

PAUSE = 0.05
"""How long (s) output is collected before it is sent."""
MOST_AT_ONCE = 1 << 18
PIECE = 1 << 16
SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36


class Holder:
    """Supervises one kernel, from its start to its end."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.token, self.mark, self.limit = options["token"], options["mark"], options["limit"]
        self.kept = OutputBuffer(self.limit)
        self.number: int | None = None
        self.ready = False
        self.sent = 0.0
        self.status: int | None = None
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with contextlib.suppress(Exception):
            import ctypes

            libc = ctypes.CDLL(None)
            libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
        wanted = options["ipykernel"]
        there = wanted is not False and importlib.util.find_spec("ipykernel") is not None
        if wanted and not there:
            self.send("failed", why="ipykernel is not installed there")
            os._exit(0)
        self.why = ""
        self.requests = bytearray()
        self.streams: dict[int, str] = {}
        self.poll = select.poll()
        self.back: Any = Notebook(self) if there else PipeProcess(self)
        for descriptor in (0, self.woken, *self.streams, *self.back.descriptors):
            self.poll.register(descriptor, select.POLLIN)

    def spawn(self, argv: list[str], *, pass_fds: tuple[int, ...], env: dict[str, str]) -> int:
        """Start the kernel's process, in a session of its own."""
        ends = []
        for name in ("stdout", "stderr"):
            read, write = os.pipe()
            os.set_blocking(read, False)
            self.streams[read] = name
            ends.append(write)
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=ends[0],
            stderr=ends[1],
            pass_fds=pass_fds,
            env={**os.environ, VARIABLE: self.mark, **env},
            start_new_session=True,
        )
        child.returncode = 0  # it is waited for below
        for write in ends:
            os.close(write)
        return child.pid

    def serve(self) -> None:
        """Serve requests until the kernel or the requests end."""
        while True:
            self.read_streams()
            self.back.receive()
            self.flush()
            if self.status is not None:
                return self.report_end()
            events = self.poll.poll(PAUSE * 1000 if self.kept.ready or not self.ready else 500)
            for descriptor, _ in events:
                if descriptor == self.woken:
                    self.reap()
                elif descriptor == 0 and not self.read_requests():
                    end_all(self.mark, os.getpid())
                    self.send("ended")
                    while True:  # until it is killed together with its remaining descendants
                        signal.pause()
            self.back.write()

    def reap(self) -> None:
        """Reap child processes that have ended."""
        with contextlib.suppress(OSError):
            while os.read(self.woken, 512):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.back.pid:
                    self.status = (
                        -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    )

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
                    self.poll.unregister(descriptor)
                    del self.streams[descriptor]
                    break
                most -= len(data)
                self.kept.printed(name, data)

    def read_requests(self) -> bool:
        """Read and handle requests; return False at the end of the input."""
        data = os.read(0, PIECE)
        if not data:
            return False
        self.requests += data
        lines: list[bytearray] = []
        if b"\n" in data:
            *lines, self.requests = self.requests.split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "run":
                self.number = request["number"]
                self.back.run(request["code"])
            elif request["number"] == self.number:
                self.interrupt()
        return True

    def interrupt(self) -> None:
        """Send SIGINT to the kernel and its foreground programs."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                send(self.back.pid, signal.SIGINT)
                break
        self.back.wake()

    def report_ready(self, backend: str) -> None:
        """Report that the kernel is ready; discard earlier output."""
        self.read_streams()
        self.kept = OutputBuffer(self.limit)
        self.ready = True
        self.send("ready", backend=backend, version="{}.{}.{}".format(*sys.version_info[:3]))

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
        clean = end_all(self.mark, os.getpid())
        items, dropped = self.kept.finish(), self.kept.dropped
        if self.ready:
            end = {"status": self.status, "why": self.why, "clean": clean}
            self.send("over", items=items, truncated=dropped, **end)
        else:
            words = "".join(text for kind, text in items if kind in STREAMS).strip()[-2000:]
            self.send("failed", why=f"it ended at once: {words}")

    def cut_off(self) -> None:
        """Handle the end of the message pipe (the kernel ends, or its code closed it): kill the kernel."""
        self.why = "its message pipe was closed"
        with contextlib.suppress(OSError):
            os.kill(self.back.pid, signal.SIGKILL)

    def flush(self) -> None:
        """Send collected output, a few times a second."""
        if self.ready and self.kept.ready and time.monotonic() > self.sent + PAUSE:
            self.send("out", items=self.kept.take())
            self.sent = time.monotonic()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to the client."""
        text = json.dumps({"say": kind, **fields})
        rest = memoryview(f"\n{self.token} {text}\n".encode())
        while rest:
            rest = rest[os.write(1, rest) :]


def cut(text: str, most: int) -> str:
    """Return the text, or only its head and tail if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}\n...\n{text[-most // 2 :]}"


def main() -> None:
    """Run the holder; its own failures go to stderr."""
    Holder(given["options"]).serve()
    os._exit(0)  # skips the exit handlers of libraries
