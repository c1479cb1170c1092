"""A command's streams joined to ours: raw into pipes and files, neutralised on a terminal."""

import contextlib
import os
import sys
import threading
from concurrent.futures import CancelledError
from typing import TextIO

from sandboxkit import CommandTimeoutError, Process
from sandboxkit._streams import OutputStream
from sandboxkit.cli._text import Neutraliser, safe_line

KEPT = 1 << 20  # bytes of output that the SDK itself holds on to; we copy it as it comes
TIMED_OUT = 124
_BROKEN_PIPE = 141
_KILL_SECONDS = 10.0


def join(process: Process, *, stdin: bool) -> int:
    """Copy the command's output (and with `stdin` our input) until it ends; return its status.

    When interrupted, the command's whole tree is dead before the interrupt goes on.
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
        status = process.result().returncode
    except CommandTimeoutError as error:
        status, message = TIMED_OUT, str(error)
    except CancelledError:
        status = _BROKEN_PIPE
    except BaseException:
        kill(process)
        raise  # without waiting for the copiers: whoever reads our output may have stopped
    for thread in copiers:
        thread.join()
    if message:
        print(f"sandboxkit: {safe_line(message)}", file=sys.stderr)
    return _BROKEN_PIPE if broken.is_set() else status


def kill(process: Process) -> None:
    """Kill the command's whole tree and wait until it is dead."""
    process.kill()
    with contextlib.suppress(Exception, CancelledError):
        process.exception(_KILL_SECONDS)


def feed_stdin(process: Process) -> None:
    """Pass our standard input on, from a thread that nobody has to wait for."""
    threading.Thread(target=_feed, args=(process,), daemon=True).start()


def _feed(process: Process) -> None:
    try:
        while data := os.read(0, 1 << 16):
            process.stdin.write(data).result()
        process.stdin.close().result()
    except (BrokenPipeError, CancelledError):
        pass  # the command ended before its input did


def _copy(process: Process, ours: TextIO, theirs: OutputStream, broken: threading.Event) -> None:
    neutraliser = Neutraliser() if ours.isatty() else None
    try:
        for chunk in theirs.bytes():
            _write(ours, chunk if neutraliser is None else neutraliser.feed(chunk))
        if neutraliser is not None:
            _write(ours, neutraliser.feed(b"", final=True))
    except BrokenPipeError:
        broken.set()
        process.kill()


def _write(ours: TextIO, data: bytes | str) -> None:
    if isinstance(data, str):
        data = data.encode(ours.encoding, "replace")
    while data:
        data = data[os.write(ours.fileno(), data) :]
