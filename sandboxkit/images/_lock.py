"""The lock with which one process of a user builds an image, while others wait for the result."""

import math
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from sandboxkit._life._locks import PathLock, remove_unlocked
from sandboxkit._life._state_folder import state_folder
from sandboxkit.errors import ImageBuildError

_POLL = 0.2
"""Seconds between two attempts to get the lock of a build."""
_SLACK = 600.0
"""How long (s) a build may take beside its steps, to start its sandbox and to take the snapshot."""


@asynccontextmanager
async def only_builder(
    digest: str, tell: Callable[[str], None], lifetime: float | None
) -> AsyncIterator[None]:
    """Hold the lock of one image's build. The kernel releases it if this process dies.

    Raises ImageBuildError if one other build holds it for longer than `lifetime` and ten minutes (s).
    """
    remove_stale()
    path = state_folder() / f"image-{digest}.lock"
    limit = math.inf if lifetime is None else lifetime + _SLACK
    holder, since = None, 0.0
    while (lock := PathLock.take(path, create=True)) is None:
        if holder is None:
            tell("another build of this image is in progress; waiting for it")
        if holder != (now_holds := _holder(path)):
            holder, since = now_holds, time.monotonic()
        elif time.monotonic() - since > limit:
            pid = (holder or "").partition(" ")[0] or "unknown"
            ours = pid == str(os.getpid())
            raise ImageBuildError(
                f"another build of the same image, of {'this process' if ours else f'process {pid}'}, has not ended "
                f"within {limit:g} s (lifetime= and {_SLACK:g} s): end it, or wait with a larger lifetime=; its "
                f"lock is {path}"
            )
        await anyio.sleep(_POLL)
    try:
        lock.write(f"{os.getpid()} {secrets.token_hex(4)}")
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def remove_stale() -> None:
    """Remove the lock files of builds whose process was killed."""
    remove_unlocked(state_folder().glob("image-*.lock"))


def _holder(path: Path) -> str:
    """Return what a build wrote, its pid and a random word; "" if it has just ended, or begins."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
