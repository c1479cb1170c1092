"""Attaches our terminal to a sandboxed command: raw mode, resizing, and a reset at the end."""

import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator

from sandboxkit import Process, PtySize
from sandboxkit._life import _exit
from sandboxkit.cli._streams import TIMED_OUT, feed_stdin, kill, without_memory
from sandboxkit.cli._text import complain
from sandboxkit.errors import CommandTimeoutError, ConfigurationError

# Resets the modes that a killed program may leave switched on: the alternate screen, a hidden
# cursor, mouse reports, bracketed paste, colours, no line wrap.
_RESET = (
    b"\x1b[?1047l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?7h\x1b[0m"
)

TERM = {"TERM": os.environ.get("TERM", "xterm")}
"""The variables of a command on our terminal."""


def attach(start: Callable[[PtySize], Process]) -> int:
    """Start a command on a PTY of our size, attach our terminal to it and return its exit status.

    Our terminal is always restored, even after a signal. Raises ConfigurationError without a terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "stdin and stdout are not a terminal; without one use 'sandboxkit run' or 'exec' with -i"
        )
    process = start(_size())
    with _resizes(process), _raw():
        output = threading.Thread(target=_show, args=(process,), daemon=True)
        output.start()
        feed_stdin(process)
        try:
            result = process.result()
            status, message = result.returncode, without_memory(result)
        except CommandTimeoutError as error:
            status, message = TIMED_OUT, str(error)
        except BaseException:
            kill(process)
            raise
        output.join()
    if message:
        complain(message)
    return status


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    saved = termios.tcgetattr(0)
    handlers = {
        number: signal.signal(number, _exit.terminate) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        tty.setraw(0, termios.TCSADRAIN)  # not FLUSH: input typed ahead belongs to the program
        yield
    finally:
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            os.write(1, _RESET)
            termios.tcsetattr(0, termios.TCSADRAIN, saved)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _resizes(process: Process) -> Iterator[None]:
    def resize(signum: int, frame: object) -> None:
        process.stdin.resize(_size())

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _size() -> PtySize:
    columns, lines = os.get_terminal_size(0)
    return PtySize(rows=lines or 24, cols=columns or 80)


def _show(process: Process) -> None:
    try:
        for chunk in process.stdout.bytes():
            while chunk:
                chunk = chunk[os.write(1, chunk) :]
    except OSError:
        process.kill()  # our terminal is gone
