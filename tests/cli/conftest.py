"""The real command in a child process, in pipes or on a terminal of its own."""

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any

import pytest

_COMMAND = (sys.executable, "-m", "sandboxkit")
_SECONDS = 120.0
_END = b"<the end of the screen>"

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli() -> Cli:
    """Run `sandboxkit` with arguments in pipes and return what it left."""

    def run(
        *args: str, stdin: str | None = None, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*_COMMAND, *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
            text=True,
            timeout=_SECONDS,
            env=environment(env),
            errors="surrogateescape",
        )

    return run


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, on the local provider, with a terminal type that every machine knows.

    The size of its window is not told by variables, which the processes of the tests have.
    """
    ours = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**ours, "SANDBOXKIT_PROVIDER": "local", "TERM": "xterm", **(extra or {})}


@contextmanager
def following(*args: str, stderr: int | None = None) -> Iterator[Any]:
    """`sandboxkit` in the background, ended at the end, with its output in a pipe."""
    # Any: a process whose `stdout` is never None.
    process: Any = subprocess.Popen(
        [*_COMMAND, *args], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
    )
    try:
        with process:
            yield process
            process.terminate()
    finally:
        process.kill()


class Terminal:
    """`sandboxkit` on a pseudo-terminal; the test is the person in front of it."""

    def __init__(self, *args: str, rows: int = 24, cols: int = 80) -> None:
        self.master, slave = pty.openpty()
        self.resize(rows, cols)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.screen = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *_COMMAND, *args],  # the terminal controls it: resizes signal it
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(),
        )

    def resize(self, rows: int, cols: int) -> None:
        """Change the window's size, as a terminal emulator does."""
        ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.master, text.encode())

    def signal(self, name: str) -> None:
        """Send the command a signal."""
        self.process.send_signal(getattr(signal, name))

    def expect(self, text: str) -> None:
        """Wait until the text is on the screen; forget the screen up to it."""
        deadline = time.monotonic() + _SECONDS
        while text.encode() not in self.screen:
            if not self.read(deadline - time.monotonic()):
                pytest.fail(f"{text!r} did not appear in {self.screen!r}")
        self.screen = self.screen.partition(text.encode())[2]

    def exit_code(self) -> int:
        """Wait for the command to end and read the rest of its screen."""
        deadline = time.monotonic() + _SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        code = self.process.wait(timeout=1)
        # The kernel passes output on later than it is written, but in its order.
        os.write(self._slave, _END)
        while _END not in self.screen:
            assert self.read(deadline - time.monotonic()), self.screen
        self.screen = self.screen.replace(_END, b"")
        return code

    def restored(self) -> bool:
        """Whether the terminal's modes are those from before."""
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        """End the command if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)

    def read(self, seconds: float) -> bool:
        """Wait so long for something new on the screen, and say whether there was."""
        if not select.select([self.master], [], [], max(0.0, seconds))[0]:
            return False
        self.screen += os.read(self.master, 1 << 16)
        return True


Open = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[Open]:
    """Start `sandboxkit` with arguments on a terminal."""
    started: list[Terminal] = []

    def start(*args: str, rows: int = 24, cols: int = 80) -> Terminal:
        started.append(Terminal(*args, rows=rows, cols=cols))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def tag() -> str:
    """A tag that no other test uses."""
    return f"cli-test:{uuid.uuid4().hex[:8]}"


@pytest.fixture
def detached(cli: Cli, tag: str) -> Iterator[str]:
    """The id of a running detached sandbox with the test's tag."""
    started = cli("run", "-d", "--lifetime", "5m", "--tag", tag)
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip()
    cli("stop", started.stdout.strip())
