"""Output streams whose failures do not end a run, for example after the terminal was closed."""

import atexit
import contextlib
import os
import sys
from typing import NoReturn, TextIO

__all__ = ["leave", "say"]


def say(stream: TextIO | None, text: str) -> None:
    """Write a line to a stream, which may be None (closed before the process started); ignore an OSError."""
    if stream is not None:
        with contextlib.suppress(OSError):
            print(text, file=stream, flush=True)


def leave(status: int) -> NoReturn:
    """Run the exit handlers and end the process without finalizing the interpreter.

    Finalization would abort if a torch thread releases a tensor (pytorch issue 190489), and unflushed
    output to a closed pipe would change the exit status.
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)
