"""Nothing left behind: interpreter exit, signals, forked children, and sweeps of strays."""

import datetime
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandboxkit import _tags
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxInfo

if TYPE_CHECKING:
    from sandboxkit._session import Session

_EXIT_SECONDS = 30.0
_SETTLE_SECONDS = 1.0
"""How long the threads of extension modules may stay in Python code at interpreter exit."""

_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()
_installed = False
_abandoned = False


def register(session: "Session") -> None:
    """Close this session at interpreter exit if nobody did before."""
    global _installed
    _sessions.add(session)
    if not _installed:
        _installed = True
        # atexit proper is too late: by then threads can no longer be started, and closing a
        # session needs them. This private hook is the one concurrent.futures itself uses.
        threading._register_atexit(_close_all)  # type: ignore[attr-defined] # private, see above
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def forget(session: "Session") -> None:
    """The session is closed."""
    _sessions.discard(session)


def abandon() -> None:
    """A second Ctrl-C: leave at once. Sandboxes that are not detached end with this process."""
    global _abandoned
    _abandoned = True


def _close_all() -> None:
    try:
        if not _abandoned:
            for operation in [session.close() for session in list(_sessions)]:
                operation.result(_EXIT_SECONDS)
    finally:
        _await_foreign_threads()


def _await_foreign_threads() -> None:
    # A thread of an extension module that is in Python code while the interpreter ends crashes
    # it (before Python 3.14). pyqwest, on which E2B's SDK stands, hands over each answer in such
    # a thread, which may not have returned when the program has the answer and ends.
    deadline = time.monotonic() + _SETTLE_SECONDS
    calm = 0
    while calm < 3 and time.monotonic() < deadline:
        python_threads = {thread.ident for thread in threading.enumerate()}
        calm = 0 if sys._current_frames().keys() - python_threads else calm + 1
        time.sleep(0.001)


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def _after_fork() -> None:
    global _sessions, _installed
    # The sandboxes are the parent's: the child neither closes them nor waits for them.
    _sessions, _installed = weakref.WeakSet(), False


os.register_at_fork(after_in_child=_after_fork)


def owner() -> str:
    """Name this process so that another one can tell whether it still lives."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid())}"


def is_orphan(info: SandboxInfo) -> bool:
    """Whether the sandbox belonged to a process of this machine that is gone."""
    if _tags.DETACH in info.tags:
        return False
    host, _, process = info.tags.get(_tags.OWNER, "").partition(":")
    pid, _, started = process.partition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    return _start_time(int(pid)) != started


def is_expired(info: SandboxInfo) -> bool:
    """Whether the sandbox has outlived the lifetime it was created with."""
    now = datetime.datetime.now(datetime.UTC)
    if info.expires_at is not None:
        return info.expires_at <= now
    expires = info.tags.get(_tags.EXPIRES)
    return expires is not None and float(expires) <= now.timestamp()


async def sweep(
    provider: Provider,
    *,
    tags: Mapping[str, str] | None = None,
    expired: bool = False,
    orphans: bool = False,
    older_than: float | None = None,
    dry_run: bool = False,
) -> list[SandboxInfo]:
    """Delete the sandboxes that carry all `tags`, are `older_than` seconds, and, when
    `expired` or `orphans` is set, are one of these. Returns what was (or would be) deleted.

    Attempts every deletion; failures are raised together as one ExceptionGroup.
    """
    chosen: list[SandboxInfo] = []
    now = datetime.datetime.now(datetime.UTC)
    async for info in provider.list(tags or {}):
        young = older_than is not None and (
            info.created_at is None or (now - info.created_at).total_seconds() < older_than
        )
        stray = (expired and is_expired(info)) or (orphans and is_orphan(info))
        if not young and (stray or not (expired or orphans)):
            chosen.append(info)
    if dry_run:
        return chosen
    removed: list[SandboxInfo] = []
    errors: list[Exception] = []
    for info in chosen:
        try:
            await provider.delete(info.id)
            removed.append(info)
        except Exception as error:  # noqa: BLE001 - all are attempted, then raised together
            errors.append(error)
    if errors:
        raise ExceptionGroup(
            f"{len(errors)} of {len(chosen)} sandboxes could not be deleted", errors
        )
    return removed


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "" if os.path.isdir("/proc/self") or not _alive(pid) else "0"
    return "" if fields[0] == "Z" else fields[19]


def _alive(pid: int) -> bool:
    # Only where there is no /proc (macOS): the start time is then unknown, "0".
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
