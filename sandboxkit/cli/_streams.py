"""Connects a command's streams to ours: raw for pipes and files, without control codes on a terminal."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TextIO

from sandboxkit import CommandTimeoutError, Ending, Process, ProcessResult
from sandboxkit._calls._streams import OutputStream
from sandboxkit.cli._text import TerminalSanitizer, safe_line

KEPT = 1 << 20  # bytes of output that the SDK keeps; we copy it as it arrives
TIMED_OUT = 124
_BROKEN_PIPE = 141
_KILL_SECONDS = 10.0


def join(process: Process, *, stdin: bool) -> int:
    """Copy the command's output, and with `stdin` our input, until it ends; return its exit status.

    On an interrupt, kill the command's whole process tree before the exception propagates.
    """
    broken = threading.Event()
    copiers = [
        threading.Thread(target=_copy, args=(process, ours, theirs, broken), daemon=True)
        for ours, theirs in ((sys.stdout, process.stdout), (sys.stderr, process.stderr))
    ]
    for thread in copiers:
        thread.start()
    if stdin:
        feed_stdin(process)
    message = ""
    try:
        result = process.result()
        status, message = result.returncode, without_memory(result)
    except CommandTimeoutError as error:
        status, message = TIMED_OUT, str(error)
    except CancelledError:
        status = _BROKEN_PIPE
    except BaseException:
        kill(process)
        raise  # do not wait for the copiers: the reader of our output may have stalled
    for thread in copiers:
        thread.join()
    if message:
        print(f"sandboxkit: {safe_line(message)}", file=sys.stderr)
    return _BROKEN_PIPE if broken.is_set() else status


def without_memory(result: ProcessResult) -> str:
    """Return what to say of a command that was killed for want of memory; "" for any other."""
    if result.ending is not Ending.OUT_OF_MEMORY:
        return ""
    return "the command ran out of the sandbox's memory and was killed: allow more with --memory-mb"


def kill(process: Process) -> None:
    """Kill the command's whole process tree and wait until it is dead."""
    process.kill()
    with contextlib.suppress(Exception, CancelledError):
        process.exception(_KILL_SECONDS)


def feed_stdin(process: Process) -> None:
    """Forward our standard input from a daemon thread."""
    threading.Thread(target=_feed, args=(process,), daemon=True).start()


def _feed(process: Process) -> None:
    try:
        while data := os.read(0, 1 << 16):
            process.stdin.write(data).result()
        process.stdin.close().result()
    except (BrokenPipeError, CancelledError):
        pass  # the command ended before its input did


def _copy(process: Process, ours: TextIO, theirs: OutputStream, broken: threading.Event) -> None:
    write = writer(ours)
    try:
        for chunk in theirs.bytes():
            write(chunk)
        write(None)
    except BrokenPipeError:
        broken.set()
        process.kill()


def writer(ours: TextIO) -> Callable[[bytes | None], None]:
    """Return a function that writes output at once, on a terminal without control codes; end it with None."""
    neutraliser = TerminalSanitizer() if ours.isatty() else None

    def write(data: bytes | None) -> None:
        left = data or b""
        if neutraliser is not None:
            text = neutraliser.feed(left, final=data is None)
            left = text.encode(ours.encoding, "replace")
        while left:
            left = left[os.write(ours.fileno(), left) :]

    return write
