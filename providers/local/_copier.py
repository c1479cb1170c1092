"""Stops a sandbox's programs and copies its files, in a process of its own if another thread holds that up.

Each system call of a thread waits for the interpreter's lock, up to 5 ms while another thread computes, and the
sandbox's programs stand still meanwhile. A process does not wait, but its start takes longer than a small copy.
"""

import os
import pickle
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyio.from_thread import check_cancelled

from sandboxkit.errors import ConfigurationError, ProviderUnavailableError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers.local._copy import copied
from sandboxkit.providers.local._folders import make_folder, remove_tree
from sandboxkit.providers.local._freeze import frozen
from sandboxkit.providers.local._layout import python_prefix
from sandboxkit.providers.local._readable import readable

_RUN = (
    "import sys; sys.path.append(sys.argv[1]); import _copy, _freeze; _copy.serve(_freeze.frozen)"
)
_QUICK = 0.05
"""How long (s) a copy may take in this process although it mostly waits, and the interval of looks at its caller."""
_BUSY = 0.5
"""The share of the time of a copy in this process in which its thread works, below which it mostly waits."""


class _HeldUpError(Exception):
    """A copy in this process was given up."""


# Any: the options of `copied`.
def copy_files(root: Path, prefix: Sequence[str] = (), **request: Any) -> tuple[int, int]:
    """Copy files of a sandbox to the folder `root`, which is emptied before; return the bytes and inodes of the copy.

    With a command `prefix` a process behind it copies them. Raises ConfigurationError for what cannot be copied, OSError, and ProviderUnavailableError.
    """
    begun, worked = time.monotonic(), time.thread_time()

    def between() -> None:
        check_cancelled()
        took = time.monotonic() - begun
        if took > _QUICK and time.thread_time() - worked < _BUSY * took:
            raise _HeldUpError

    try:
        try:
            remove_tree(root)  # what an attempt before has copied
            make_folder(root)
            if prefix:
                return _copied_aside(prefix, root=str(root), **request)
            with frozen(request["init"], between):
                return copied(root=str(root), between=between, **request)
        except _HeldUpError:
            remove_tree(root)
            make_folder(root)
            return _copied_aside((), root=str(root), **request)
    except TimeoutError as error:
        raise ProviderUnavailableError(str(error)) from error
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _copied_aside(prefix: Sequence[str], **request: object) -> tuple[int, int]:
    """Copy as `copied`, in a process that ends with this one."""
    ours, theirs = socket.socketpair()
    close_in_forks(ours)
    argv = [*prefix, python_prefix()[1], "-I", "-S", "-c", _RUN, os.path.dirname(__file__)]
    sink = subprocess.DEVNULL
    with theirs:
        process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=sink, start_new_session=True)
    with process, ours, ours.makefile("rb") as answers:
        with suppress(BrokenPipeError):
            ours.sendall(pickle.dumps(request))
        while not readable(ours.fileno(), _QUICK):
            check_cancelled()
        try:
            answer: tuple[int, int] | Exception = pickle.load(answers)
        except (EOFError, ConnectionError) as error:
            raise ProviderUnavailableError(
                "the process that copies the sandbox's files was killed, perhaps for lack of memory: try again"
            ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer
