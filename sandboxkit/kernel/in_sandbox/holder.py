"""The supervisor of a kernel and its forks: passes cells to them, reads their output, and ends their processes.

It is a command of its own in the sandbox. It alone writes to the client, in lines that begin with a token that the
kernels do not know. It reads what kernels print from pipes, and sends a message only after all that was printed
before it. It adopts what a kernel leaves behind. A kernel forks twice, so that the fork is the holder's child: the
holder learns how each fork ends, and outlives the kernel as long as one lives.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
from typing import Any, NoReturn

from sandboxkit.kernel.in_sandbox.notebook import Notebook
from sandboxkit.kernel.in_sandbox.piped import PipeProcess
from sandboxkit.kernel.in_sandbox.supervised import PAUSE, PIECE, SupervisedKernel

FORK_FILES = 16
"""An upper bound of what the holder opens for a fork."""
SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36


class Holder:
    """Supervises one kernel and its forks, each by its number; the first kernel has number 0."""

    def __init__(
        self,
        own: str,
        in_notebook: str,
        token: str,
        mark: str,
        limit: int,
        wanted: bool | None,
    ) -> None:
        self.token, self.limit = token, limit
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
        why = "" if wanted is False else without_ipykernel()
        if wanted and why:
            self.send("failed", kernel=0, why=why)
            os._exit(0)
        self.requests = bytearray()
        self.poll = select.poll()
        for descriptor in (0, self.woken):
            self.poll.register(descriptor, select.POLLIN)
        self.kernels: dict[int, SupervisedKernel] = {}
        first = SupervisedKernel(self, 0, mark)
        is_own = wanted is False or why
        first.back = PipeProcess(first, own) if is_own else Notebook(first, in_notebook)
        self.add(first)

    def add(self, kernel: SupervisedKernel) -> None:
        """Supervise a kernel."""
        self.kernels[kernel.name] = kernel
        for descriptor in (*kernel.streams, *kernel.back.descriptors):
            self.poll.register(descriptor, select.POLLIN)

    def remove(self, kernel: SupervisedKernel) -> None:
        """Forget a kernel that has ended, and close its descriptors."""
        del self.kernels[kernel.name]
        if self.kernels:  # otherwise the holder ends
            for descriptor in (*kernel.streams, *kernel.back.descriptors):
                self.unwatch(descriptor)
            kernel.back.close()

    def unwatch(self, descriptor: int) -> None:
        """Close a descriptor that has nothing more to read."""
        self.poll.unregister(descriptor)
        os.close(descriptor)

    def serve(self) -> NoReturn:
        """Serve requests until the kernels or the requests end; failures go to stderr."""
        while True:
            for kernel in list(self.kernels.values()):
                kernel.read_streams()
                kernel.back.receive()
                kernel.flush()
                if kernel.status is not None:
                    kernel.report_end()
                    self.remove(kernel)
            if not self.kernels:
                os._exit(0)  # skips the exit handlers of libraries
            busy = any(each.kept.ready or not each.ready for each in self.kernels.values())
            for descriptor, _ in self.poll.poll(PAUSE * 1000 if busy else 500):
                if descriptor == self.woken:
                    self.reap()
                elif descriptor == 0 and not self.read_requests():
                    for kernel in list(self.kernels.values()):
                        self.end(kernel)
                    while True:  # until it is killed together with its remaining descendants
                        signal.pause()
            for kernel in self.kernels.values():
                kernel.back.write()

    def end(self, kernel: SupervisedKernel) -> None:
        """End a kernel and its processes, and report it."""
        kernel.end()
        self.remove(kernel)
        kernel.send("ended")

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
                for kernel in self.kernels.values():
                    if pid == kernel.back.pid:
                        kernel.exited(status)

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
            self.handle(json.loads(line))
        return True

    def handle(self, request: dict[str, Any]) -> None:
        """Handle a request. A kernel that is not there has ended, or its fork was never asked for."""
        kernel, kind = self.kernels.get(request["kernel"]), request["do"]
        if kernel is None:
            if kind == "fork":
                self.send("failed", kernel=request["fork"], why="the kernel has ended")
            elif kind == "end":
                self.send("ended", kernel=request["kernel"])
        elif kind == "fork":
            self.fork(kernel, request["fork"], request["mark"])
        elif kind == "run":
            kernel.number = request["number"]
            kernel.back.run(request["code"])
        elif kind == "end":
            self.end(kernel)
        elif request["number"] == kernel.number:
            kernel.interrupt()

    def fork(self, origin: SupervisedKernel, name: int, mark: str) -> None:
        """Have a kernel forked, if this process may open what that takes."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if 0 <= most < len(os.listdir("/proc/self/fd")) + FORK_FILES:  # -1: no limit
            return self.send("failed", kernel=name, why="its supervisor has too many files open")
        fork = SupervisedKernel(self, name, mark)
        fork.back = PipeProcess(fork, "", origin)
        self.add(fork)

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message to the client."""
        text = json.dumps({"say": kind, **fields})
        rest = memoryview(f"\n{self.token} {text}\n".encode())
        while rest:
            rest = rest[os.write(1, rest) :]


def without_ipykernel() -> str:
    """Return why ipykernel cannot run here, or nothing."""
    if importlib.util.find_spec("ipykernel") is None:
        return "ipykernel is not installed there"
    with contextlib.suppress(OSError):
        socket.socket(socket.AF_UNIX).close()
        return ""
    return "this sandbox has no sockets, which ipykernel needs: give ipykernel=False, or another isolation="
