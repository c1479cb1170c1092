"""Runs a task author's function on a policy's output, in a forked process with limits.

The output is hostile: it may make the function raise, loop, or use up memory. None of that reaches the trainer.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any  # Any: JSON

SECONDS = 10
"""CPU time limit of one call in seconds."""
WALL = 120
"""Elapsed time limit of one call in seconds."""
_MEMORY = 1 << 30
"""Memory in bytes that the process may use on top of what the trainer used when it was forked."""
_MOST = 1 << 20
"""Maximum size of a result in bytes of JSON."""


class AuthorError(Exception):
    """Raised if the author's function raised an error or exceeded a limit; the message says which."""


class AuthorFunction:
    """Calls `function` with texts in a process of its own; the result is JSON. Thread-safe.

    The process is forked at the first call, and again after a call that ended it. It has a copy of the trainer's
    variables: what the function changes does not reach the trainer.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def __call__(self, *texts: str) -> Any:
        """Return the function's result. Raises AuthorError."""
        with self._lock:
            if self._child is None or self._child.owner != os.getpid():
                self._child = _Child(self._function)
                weakref.finalize(self, self._child.end)
            try:
                kind, value = self._child.ask(texts)
            except BaseException:
                self._child.end()
                self._child = None
                raise
        if kind != "returned":
            raise AuthorError(str(value))
        return value


class _Child:
    """A forked process that calls one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.owner = os.getpid()
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(function, other), daemon=True)
        with warnings.catch_warnings():  # other threads may hold locks: a call has a time limit
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()

    def ask(self, texts: Sequence[str]) -> Any:
        """Return the response to one call. Raises AuthorError."""
        try:
            self._connection.send_bytes(json.dumps(texts).encode())
            if not self._connection.poll(WALL):
                raise AuthorError(f"it did not return within {WALL} s")
            return json.loads(self._connection.recv_bytes(2 * _MOST))
        except (EOFError, OSError) as error:
            self._process.join(1)  # its end of the pipe is closed just before
            raise AuthorError(_ended(self._process.exitcode)) from error

    def end(self) -> None:
        """Kill the process. Idempotent; does nothing in a fork of the trainer."""
        if os.getpid() == self.owner:
            self._connection.close()
            self._process.kill()
            self._process.join()


@lru_cache(maxsize=64)
def author_function(function: Callable[..., Any]) -> AuthorFunction:
    """Return the process of a function, the same one for all tasks that name it."""
    return AuthorFunction(function)


def _serve(function: Callable[..., Any], connection: Connection) -> None:
    """Answer calls until the connection ends. It holds none of the trainer's other descriptors."""
    descriptor = connection.fileno()
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    if sys.platform == "linux":  # elsewhere the kernel has no such limit
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, used + _MEMORY)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        try:
            texts = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + SECONDS)
        signal.alarm(2 * WALL)  # for the case that the trainer is gone
        connection.send_bytes(json.dumps(_called(function, texts)).encode())
        signal.alarm(0)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (soft, hard))


def _called(function: Callable[..., Any], texts: Sequence[str]) -> tuple[str, Any]:
    try:
        value = function(*texts)
        if len(json.dumps(value)) > _MOST:
            raise ValueError(f"it returned more than {_MOST} bytes")
    except BaseException as error:  # noqa: BLE001 - the author's code may raise anything, SystemExit as well
        return "raised", f"{type(error).__name__}: {str(error)[:500]}"
    return "returned", value


def _ended(status: int | None) -> str:
    if status == -signal.SIGXCPU:
        return f"it used more than {SECONDS} s of CPU time"
    return f"its process ended with status {status}"
