"""A rank whose launcher is gone is told so, for nobody else would end it."""

import contextlib
import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

_PARENT = os.getppid()
"""Of this process, when it was begun: this is imported before what takes seconds."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with_parent() -> None:
    """SIGTERM comes to this process once who began it has died, at once where it has; on Linux alone.

    To be called on the main thread. A rank writes a checkpoint then, as after a SIGTERM of the launcher.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # of a C library without it
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != _PARENT:
        signal.raise_signal(signal.SIGTERM)
