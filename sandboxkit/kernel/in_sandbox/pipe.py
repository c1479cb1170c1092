"""Output pipes of a persistent Python: a write waits until the other pipes are read, which keeps the order."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import sys
import termios
import time
from collections.abc import Sequence
from typing import Any, Protocol


class Unread(Protocol):
    """The object that says how many bytes the holder has yet to read."""

    def unread(self) -> int: ...


STARTS = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
"""The audit events that Python raises before it starts a program."""
READ_SECONDS = 1.0
"""The longest wait (s) for earlier output to be read; the wait only preserves order."""


def wait_until_read(others: Sequence[Unread]) -> None:
    """Wait until the holder has read everything from these pipes, at most `READ_SECONDS`."""
    deadline = time.monotonic() + READ_SECONDS
    for other in others:
        while other.unread() > 0 and time.monotonic() < deadline:
            time.sleep(0.0002)


def read_before_children(pipes: Sequence[Unread]) -> None:
    """Install an audit hook: wait until these pipes are empty before a program starts.

    A child program writes to the same pipes without waiting.
    """

    def hook(event: str, args: object) -> None:
        if event in STARTS:
            wait_until_read(pipes)

    sys.addaudithook(hook)


class PipeWriter(io.RawIOBase):
    """The write end of a pipe to the holder."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.kept = os.dup(descriptor)  # still the pipe if the code redirects `descriptor`
        self.others: list[Unread] = []

    def fileno(self) -> int:
        return self.descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        wait_until_read(self.others)
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]
        return size

    def unread(self) -> int:
        try:
            found = fcntl.ioctl(self.kept, termios.FIONREAD, b"\0\0\0\0")
        except OSError:
            return 0
        return int(struct.unpack("i", found)[0])


def text_of(pipe: PipeWriter) -> Any:
    """Return an unbuffered text stream over the pipe."""
    pipe_as_buffer: Any = pipe
    return io.TextIOWrapper(
        pipe_as_buffer,
        encoding="utf-8",
        errors="backslashreplace",
        newline="\n",
        write_through=True,
    )
