"""What a run says, to somebody who may have gone: no run ends, or fails, because nobody reads it."""

import atexit
import contextlib
import os
import sys
from typing import IO, NoReturn, TextIO, cast

__all__ = ["Heard", "leave"]


class Heard:
    """A stream whose writes never fail: on a disk without room, or into a pipe that nobody reads,
    they come to nothing, or later. In all else it is the stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it if that can be done."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """The same of what is buffered."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    @classmethod
    def of(cls, stream: TextIO | None) -> IO[str] | None:
        """It, as what takes a file wants it; None of a stream that was closed before we began."""
        return stream and cast(IO[str], cls(stream))


def leave(status: int) -> NoReturn:
    """End the process, after its exit handlers but without the interpreter's own end.

    In that a thread of torch that lets go of a tensor aborts the process (pytorch issue 190489), and
    what standard output still holds for nobody makes the status another one.
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)
