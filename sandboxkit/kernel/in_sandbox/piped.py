"""The holder's connection to the built-in kernel: a socket for requests, a pipe for messages."""

from __future__ import annotations

import array
import contextlib
import json
import os
import secrets
import select
import socket
import sys
from typing import TYPE_CHECKING, Any

from sandboxkit.kernel.in_sandbox.ends import VARIABLE

if TYPE_CHECKING:
    from sandboxkit.kernel.in_sandbox.supervised import SupervisedKernel

START = "import sys; sys.path[:] = filter(None, sys.path); exec(input())"
"""Runs a line of standard input, which keeps command lines in process lists short; imports nothing from `cwd`."""


class PipeProcess:
    """A process that runs `own.py`, which `program` has; writes requests to it and reads its messages.

    It is started, or forked from the process of the kernel `origin`. Both get the same descriptors:
    requests, messages, standard output and standard error.
    """

    def __init__(
        self, kernel: SupervisedKernel, program: str, origin: SupervisedKernel | None = None
    ) -> None:
        self.kernel, self.origin = kernel, origin
        self.requests, theirs = socket.socketpair()
        self.requests.setblocking(False)
        self.messages, output = os.pipe()
        os.set_blocking(self.messages, False)
        self.descriptors = [self.messages]
        self.most = 8 * kernel.limit + (1 << 20)
        self.token = ""
        self.read = bytearray()
        self.unwritten: list[tuple[memoryview, list[int]]] = []
        self.pid: int | None = None
        if origin is not None:
            marks = [f"{VARIABLE}={each.mark}" for each in (origin, kernel)]
            ends = [theirs.detach(), output, *kernel.open_streams()]
            origin.back.ask({"fork": kernel.name, "marks": marks}, ends)
            return
        argv = [sys.executable or "python3", "-c", START]
        self.pid = kernel.spawn(argv, stdin=theirs.fileno(), pass_fds=(output,), env={})
        theirs.close()
        os.close(output)
        line = f"exec({program!a}); module.main({output})\n".encode()
        self.unwritten.append((memoryview(line), []))
        self.write()

    def run(self, code: str) -> None:
        """Send a cell; its messages carry a token unique to the cell."""
        self.token = secrets.token_hex(8)
        self.ask({"token": self.token, "limit": self.kernel.limit // 2, "code": code}, [])

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Send a request, and descriptors with it, which are then closed here."""
        self.unwritten.append((memoryview(json.dumps(request).encode() + b"\n"), descriptors))
        self.write()

    def write(self) -> None:
        """Write as much as the socket accepts without blocking."""
        while self.unwritten:
            rest, descriptors = self.unwritten[0]
            rights = array.array("i", descriptors)
            try:
                size = self.requests.sendmsg(
                    [rest], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
                )
            except BlockingIOError:
                return self.kernel.holder.poll.register(self.requests, select.POLLOUT)
            except OSError:
                size = len(rest)  # the kernel has ended, or its code closed the socket
            for descriptor in descriptors:
                os.close(descriptor)
            self.unwritten[0] = rest[size:], []
            if size == len(rest):
                del self.unwritten[0]
        with contextlib.suppress(KeyError):
            self.kernel.holder.poll.unregister(self.requests)

    def close(self) -> None:
        """Close the socket, and what would still have been sent over it."""
        for _, descriptors in self.unwritten:
            for descriptor in descriptors:
                os.close(descriptor)
        self.unwritten, self.descriptors = [], []
        self.write()
        self.requests.close()

    def wake(self) -> None:
        """Do nothing: a signal alone interrupts this kernel."""

    def receive(self) -> None:
        """Read the kernel's messages. They are untrusted: the cell's code can forge them."""
        while self.descriptors:
            try:
                data = os.read(self.messages, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.descriptors.remove(self.messages)
                self.kernel.holder.unwatch(self.messages)
                if self.origin is not None and self.pid is None:
                    self.origin.back.receive()  # why there is no fork
                return self.kernel.cut_off()
            self.read += data
            if b"\n" in data:
                *lines, self.read = self.read.split(b"\n")
                for line in lines:
                    self.handle(bytes(line))
            elif len(self.read) > self.most:
                self.read.clear()

    def handle(self, line: bytes) -> None:
        """Handle one message; ignore it if its token or JSON is wrong."""
        token, found, text = line.partition(b" ")
        if not found or token != self.token.encode():
            return
        try:
            message = json.loads(text)
            kind = message["say"]
            if kind == "ready":
                if self.pid is not None or self.adopt(message["pid"]):
                    self.kernel.report_ready("own")
            elif kind == "unforked":
                fork = self.kernel.holder.kernels[message["fork"]]
                if not fork.ready:
                    fork.fail(str(message["why"]), refused=message["refused"] is True)
            elif kind == "done":
                error = message["error"]
                self.kernel.report_done(None if error is None else dict(error), message["count"])
            elif kind in ("display", "result"):
                self.kernel.kept.shown(kind, dict(message["data"]), bool(message["cut"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # malformed: the cell's code wrote it

    def adopt(self, pid: int) -> bool:
        """Take over a fork, which its parents have left to this process; return whether it lives."""
        try:
            ended, status = os.waitpid(max(1, pid), os.WNOHANG)
        except ChildProcessError:
            self.kernel.fail("the fork ended at once, or that Python lacks ctypes")
            return False
        self.pid = pid
        if ended:
            self.kernel.exited(status)
        return not ended
