"""Sends SIGTERM to a rank whose launcher died, since nothing else would end it."""

import contextlib
import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

_PARENT = os.getppid()
"""Parent process id at import, which must come before the slow imports."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with_parent() -> None:
    """Have SIGTERM sent to this process when its parent dies, or now if it is dead. Linux only.

    Call this on the main thread. The rank then writes a checkpoint, as after any SIGTERM.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != _PARENT:
        signal.raise_signal(signal.SIGTERM)
