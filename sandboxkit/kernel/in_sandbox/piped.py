"""The holder's connection to the built-in kernel, over two pipes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import sys
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandboxkit.kernel.in_sandbox.holder import Holder

    given: dict[str, Any] = {}


class PipeProcess:
    """A process that runs `own.py`; writes requests to it and reads its messages."""

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        theirs, self.requests = os.pipe()
        self.messages, output = os.pipe()
        for end in (self.requests, self.messages):
            os.set_blocking(end, False)
        boot = given["boot"].replace("@FROM@", str(theirs))
        self.pid = holder.spawn(
            [sys.executable or "python3", "-c", boot], pass_fds=(theirs, output), env={}
        )
        for end in (theirs, output):
            os.close(end)
        self.descriptors = [self.messages]
        self.most = 8 * holder.limit + (1 << 20)
        self.token = ""
        self.read = bytearray()
        call = f"main({theirs}, {output})"
        source = json.dumps({"program": [*given["own"], call]}).encode()
        self.unwritten = [memoryview(b"%08d" % len(source) + source)]
        self.write()

    def run(self, code: str) -> None:
        """Send a cell; its messages carry a token unique to the cell."""
        self.token = secrets.token_hex(8)
        request = {"token": self.token, "limit": self.holder.limit // 2, "code": code}
        self.unwritten.append(memoryview(json.dumps(request).encode() + b"\n"))
        self.write()

    def write(self) -> None:
        """Write as much as the pipe accepts without blocking."""
        while self.unwritten:
            rest = self.unwritten[0]
            try:
                size = os.write(self.requests, rest)
            except BlockingIOError:
                return self.holder.poll.register(self.requests, select.POLLOUT)
            except OSError:
                size = len(rest)  # the kernel has ended, or its code closed the pipe
            self.unwritten[0] = rest[size:]
            if size == len(rest):
                del self.unwritten[0]
        with contextlib.suppress(KeyError):
            self.holder.poll.unregister(self.requests)

    def wake(self) -> None:
        """Do nothing: a signal alone interrupts this kernel."""

    def receive(self) -> None:
        """Read the kernel's messages. They are untrusted: the cell's code can forge them."""
        while True:
            try:
                data = os.read(self.messages, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                if self.messages in self.descriptors:
                    self.descriptors.remove(self.messages)
                    self.holder.poll.unregister(self.messages)
                    self.holder.cut_off()
                return
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
                self.holder.report_ready("own")
            elif kind == "done":
                error = message["error"]
                self.holder.report_done(None if error is None else dict(error), message["count"])
            elif kind in ("display", "result"):
                self.holder.kept.shown(kind, dict(message["data"]), bool(message["cut"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # malformed: the cell's code wrote it
