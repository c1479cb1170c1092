"""Starts processes for the emulator. Runs inside a sandbox, with only the standard library.

A frame, in both directions, is a length, a kind, the number of a process, and data. A stream's output
is read only up to the credit that the emulator has granted, so a slow reader blocks only its own
process. A stream ends when the last process that has it open closes it, not with the first process.
"""

import fcntl
import json
import os
import selectors
import signal
import struct
import termios

HEADER = struct.Struct(">IcI")
WINDOW = 1 << 20
PIECE = 1 << 16


class Process:
    """One process, with this side's descriptors of its streams."""

    def __init__(self, number: int, pid: int, stdin: int, outputs: dict[bytes, int]) -> None:
        self.number, self.pid, self.stdin, self.outputs = number, pid, stdin, outputs
        self.credit = dict.fromkeys(outputs, WINDOW)
        self.pending: list[bytes] = []
        self.closing = False


class Worker:
    """Serves the frames and all processes in one selector loop."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.processes: dict[int, Process] = {}
        self.received = b""

    def run(self) -> None:
        """Serve until the emulator closes this process's stdin."""
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(wake, selectors.EVENT_READ, lambda: os.read(wake, PIECE))
        self.selector.register(0, selectors.EVENT_READ, self.receive)
        while True:
            for key, _ in self.selector.select():
                key.data()
            self.reap()

    def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        self.write(HEADER.pack(len(data), kind, number) + data)

    def write(self, frames: bytes) -> None:
        left = memoryview(frames)
        while left:
            left = left[os.write(1, left) :]

    def receive(self) -> None:
        data = os.read(0, 1 << 18)
        if not data:
            raise SystemExit
        self.received += data
        while len(self.received) >= HEADER.size:
            size, kind, number = HEADER.unpack_from(self.received)
            if len(self.received) < HEADER.size + size:
                return
            data = self.received[HEADER.size : HEADER.size + size]
            self.received = self.received[HEADER.size + size :]
            self.handle(kind, number, data)

    def handle(self, kind: bytes, number: int, data: bytes) -> None:
        if kind == b"s":
            self.spawn(number, **json.loads(data))
            return
        process = self.processes.get(number)
        if process is None:
            if kind == b"w":
                self.send(b"f", number)
            return
        if kind == b"w":
            process.pending.append(data)
            self.flush(process)
        elif kind == b"e":
            process.closing = True
            self.flush(process)
        elif kind == b"k" and process.pid:
            os.kill(process.pid, int(data or b"9"))
        elif kind == b"z":
            size = map(int, data.split())
            fcntl.ioctl(process.stdin, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        elif kind == b"c":
            stream, amount = data[:1], int(data[1:])
            blocked = process.credit[stream] <= 0
            process.credit[stream] += amount
            if blocked and process.credit[stream] > 0 and stream in process.outputs:
                self.watch(process, stream)

    def watch(self, process: Process, stream: bytes) -> None:
        self.selector.register(
            process.outputs[stream], selectors.EVENT_READ, lambda: self.forward(process, stream)
        )

    def forward(self, process: Process, stream: bytes) -> None:
        """Send available output: one piece from a pipe, or several from a terminal, of up to 4 KiB each."""
        end, frames, data = process.outputs[stream], b"", b"-"
        while data and process.credit[stream] > 0 and len(frames) < PIECE:
            try:
                data = os.read(end, min(PIECE, process.credit[stream]))
            except BlockingIOError:
                break
            except OSError:  # a terminal whose other side is closed
                data = b""
            frames += HEADER.pack(len(data), stream, process.number) + data
            process.credit[stream] -= len(data)
            if os.get_blocking(end):
                break
        self.write(frames)
        if not data or process.credit[stream] <= 0:
            self.selector.unregister(end)
        if not data:
            del process.outputs[stream]
            os.close(end)

    def flush(self, process: Process) -> None:
        """Write as much buffered input as the process accepts without blocking."""
        if process.stdin in self.selector.get_map():
            self.selector.unregister(process.stdin)
        while process.pending and process.stdin >= 0:
            try:
                written = os.write(process.stdin, process.pending[0])
            except BlockingIOError:
                self.selector.register(
                    process.stdin, selectors.EVENT_WRITE, lambda: self.flush(process)
                )
                return
            except OSError:
                self.close_stdin(process)
                break
            process.pending[0] = process.pending[0][written:]
            if not process.pending[0]:
                del process.pending[0]
                self.send(b"d", process.number)
        while process.pending:
            del process.pending[0]
            self.send(b"f", process.number)
        if process.closing:
            self.close_stdin(process)

    def close_stdin(self, process: Process) -> None:
        if process.stdin >= 0:
            if process.stdin in self.selector.get_map():
                self.selector.unregister(process.stdin)
            os.close(process.stdin)
            process.stdin = -1

    def spawn(
        self,
        number: int,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        pty: list[int] | None,
    ) -> None:
        if pty:
            ours, theirs = os.openpty()
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *pty, 0, 0))
            # Two descriptors, because a selector accepts each only once.
            ends, stdin, outputs = (theirs, theirs, theirs), os.dup(ours), {b"o": ours}
            os.set_blocking(ours, False)
        else:
            (stdin_read, stdin), (out, out_write), (err, err_write) = (
                os.pipe(),
                os.pipe(),
                os.pipe(),
            )
            ends, outputs = (stdin_read, out_write, err_write), {b"o": out, b"r": err}
            os.set_blocking(stdin, False)
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for target, end in enumerate(ends):
                    os.dup2(end, target)
                if pty:
                    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.chdir(cwd or "/")
                os.execvpe(argv[0], argv, {**os.environ, **env})
            except OSError as error:
                os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
            os._exit(127)
        for end in set(ends):
            os.close(end)
        process = self.processes[number] = Process(number, pid, stdin, outputs)
        for stream in list(outputs):
            self.watch(process, stream)
        if pty:
            self.send(b"r", number)  # no standard error of its own

    def reap(self) -> None:
        for process in list(self.processes.values()):
            if process.pid:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    process.pid = 0
                    self.send(b"x", process.number, b"%d" % os.waitstatus_to_exitcode(status))
            if not process.pid and not process.outputs:
                self.close_stdin(process)
                del self.processes[process.number]


Worker().run()
