"""Output streams whose failures do not end a run, for example after the terminal was closed."""

import atexit
import contextlib
import os
import sys
from typing import IO, NoReturn, TextIO, cast

__all__ = ["Heard", "leave"]


class Heard:
    """Wraps a stream so that writes never fail, for example on a full disk or a closed pipe.

    A failed write is dropped or delayed. Every other attribute is that of the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text; ignore an OSError."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer; ignore an OSError."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    @classmethod
    def of(cls, stream: TextIO | None) -> IO[str] | None:
        """Wrap a stream, typed as a file; None if the stream was closed before the process started."""
        return stream and cast(IO[str], cls(stream))


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
