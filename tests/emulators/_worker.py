"""Starts processes for the emulator. Runs inside a sandbox, with only the standard library.

A frame, in both directions, is a length, a kind, the number of a process, and data. A stream's output
is read only up to the credit that the emulator has granted, so a slow reader blocks only its own
process. A stream ends when the last process that has it open closes it, not with the first process.
"""

import fcntl
import json
import os
import queue
import select
import signal
import struct
import sys
import termios
import threading
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct(">IcI")
WINDOW = 1 << 20
PIECE = 1 << 16
SENDING = threading.Lock()


def send(kind: bytes, number: int, data: bytes = b"") -> None:
    left = memoryview(HEADER.pack(len(data), kind, number) + data)
    with SENDING:
        while left:
            left = left[os.write(1, left) :]


class Process:
    """One process; threads carry its streams and wait for its end."""

    def __init__(
        self, number: int, argv: list[str], env: dict[str, str], cwd: str, pty: list[int] | None
    ) -> None:
        self.number = number
        self.credit = {b"o": WINDOW, b"r": WINDOW}
        self.granted = threading.Condition()
        self.left = 2 if pty else 3
        """How many of its end and its outputs have not come."""
        self.input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        if pty:
            ours, theirs = os.openpty()
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *pty, 0, 0))
            # Two descriptors, because each thread closes its own.
            ends, self.stdin, outputs = (theirs, theirs, theirs), os.dup(ours), {b"o": ours}
        else:
            (stdin, self.stdin), (out, out_write), (err, err_write) = (os.pipe() for _ in range(3))
            ends, outputs = (stdin, out_write, err_write), {b"o": out, b"r": err}
        self.pid = os.fork()
        if self.pid == 0:
            self.become(argv, {**os.environ, **env}, cwd, ends, bool(pty))
        for end in set(ends):
            os.close(end)
        for stream, end in outputs.items():
            self.run(self.forward, stream, end)
        self.run(self.feed)
        self.run(self.wait)
        if pty:
            send(b"r", number)  # no standard error of its own

    # Any: what the work takes.
    def run(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def become(
        self, argv: list[str], env: dict[str, str], cwd: str, ends: tuple[int, ...], pty: bool
    ) -> None:
        try:
            os.setsid()
            for target, end in enumerate(ends):
                os.dup2(end, target)
            if pty:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.chdir(cwd)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)

    def grant(self, stream: bytes, amount: int) -> None:
        with self.granted:
            self.credit[stream] += amount
            self.granted.notify_all()

    def forward(self, stream: bytes, end: int) -> None:
        """Send available output: a terminal gives up to 4 KiB at a time, which are put together."""
        data = b"-"
        while data:
            with self.granted:
                self.granted.wait_for(lambda: self.credit[stream] > 0)
            most, data = min(PIECE, self.credit[stream]), b""
            try:
                while len(data) < most and (not data or select.select([end], [], [], 0)[0]):
                    more = os.read(end, most - len(data))
                    data += more
                    if not more:
                        break
            except OSError:  # a terminal whose other side is closed
                pass
            self.grant(stream, -len(data))
            send(stream, self.number, data)
        os.close(end)
        self.finish()

    def finish(self) -> None:
        with self.granted:
            self.left -= 1
        if not self.left:
            self.input.put(None)

    def feed(self) -> None:
        """Write the input; where nobody can read it, say so for each piece."""
        lost = False
        while (data := self.input.get()) is not None:
            left = memoryview(data)
            try:
                while left and not lost:
                    left = left[os.write(self.stdin, left) :]
            except OSError:
                lost = True
            send(b"f" if lost else b"d", self.number)
        os.close(self.stdin)
        while True:
            if self.input.get() is not None:
                send(b"f", self.number)

    def kill(self, signum: int) -> None:
        with self.granted:
            if self.pid:
                os.kill(self.pid, signum)

    def wait(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self.granted:
            _, status = os.waitpid(self.pid, 0)
            self.pid = 0
        send(b"x", self.number, b"%d" % os.waitstatus_to_exitcode(status))
        self.finish()


def main() -> None:
    """Serve until the emulator closes this process's stdin."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    processes: dict[int, Process] = {}
    while head := sys.stdin.buffer.read(HEADER.size):
        size, kind, number = HEADER.unpack(head)
        data = sys.stdin.buffer.read(size)
        if kind == b"s":
            processes[number] = Process(number, **json.loads(data))
            continue
        process = processes[number]
        if kind == b"w":
            process.input.put(data)
        elif kind == b"e":
            process.input.put(None)
        elif kind == b"k":
            process.kill(int(data))
        elif kind == b"c":
            process.grant(data[:1], int(data[1:]))


main()
