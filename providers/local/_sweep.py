"""What dead clients left on this machine goes: processes, control groups and folders.

Nothing that a living process owns is touched, nor a start in progress, nor what belongs to a pid
namespace that is not ours and might live. Several sweeps may run at once.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from sandboxkit.errors import SandboxError
from sandboxkit.providers.local import _cgroup, _launch, _state
from sandboxkit.providers.local._readable import readable

__all__ = ["Sweeper", "sweep"]

_log = logging.getLogger("sandboxkit.local")
_PATIENCE = 2.0
"""Seconds for the kernel to end what was killed."""
_MARK = re.compile(rb"(?:^|\0)" + _launch.MARK.encode() + rb"=(local-[0-9a-f]{16})(?:\0|$)")


def sweep(
    state: _state.StateDir,
    mine: Collection[str],
    stopped: Callable[[], bool] = lambda: False,
) -> list[_state.Meta]:
    """Remove what is left of sandboxes whose owner is dead, and return those that live.

    `mine` are the caller's own, which it clears away itself. Ends early once `stopped`.
    """
    living: list[_state.Meta] = []
    for meta in state:
        if stopped():
            return living
        if meta.orphaned:
            _end(meta)
        elif state.alive(meta):
            living.append(meta)
            continue
        # What a living owner has not yet cleared away it may still want to read: why it ended.
        if meta.id not in mine and not meta.owned:
            _cgroup.kill_members(meta.cgroups)
            if _cgroup.remove(meta.cgroups):
                state.remove(state.folder(meta.id))
    _sweep_starts(state, stopped)
    _sweep_groups(stopped)
    return living


def _end(meta: _state.Meta) -> None:
    """Kill the sandbox of a dead owner; most often it is ending by itself already."""
    pidfds = [_state.pinned(pid, started) for pid, started in meta.processes.items()]
    deadline = time.monotonic() + _PATIENCE
    for pidfd in pidfds:
        if pidfd is not None:
            _state.kill(pidfd)
    for pidfd in pidfds:
        if pidfd is not None:
            readable(pidfd, deadline - time.monotonic())
            os.close(pidfd)


def _sweep_starts(state: _state.StateDir, stopped: Callable[[], bool]) -> None:
    """Those that were killed between the first folder and the sandbox's first word."""
    abandoned = list(state.abandoned())
    try:
        # Bubblewrap's first process inside waits for the one outside, and for ever if that dies:
        # it has no lifeline yet. Where there are no control groups only its mark finds it.
        for _, pidfd in _marked({begun.sandbox_id for begun in abandoned}):
            _state.kill(pidfd)
            os.close(pidfd)
        for begun in abandoned:
            if stopped():
                return
            groups = begun.groups()
            _cgroup.kill_members(groups)
            if _cgroup.remove(groups):
                state.remove(begun.folder)
    finally:
        for begun in abandoned:
            begun.close()


def _marked(ids: Collection[str]) -> list[tuple[int, int]]:
    """Pids and pidfds of processes that are to become one of these sandboxes' agents."""
    found = []
    for entry in os.listdir("/proc") if ids else ():
        if entry.isdigit() and _mark(entry) in ids:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(int(entry))
                if _mark(entry) in ids:
                    found.append((int(entry), pidfd))
                else:
                    os.close(pidfd)  # another process, by now
    return found


def _mark(pid: str) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            match = _MARK.search(file.read(4096))
    except OSError:
        return None  # it is gone, or somebody else's
    return None if match is None else match[1].decode()


def _sweep_groups(stopped: Callable[[], bool]) -> None:
    """Groups of dead makers, whatever became of the state folder that named them."""
    for maker, detached, group in _cgroup.strays():
        if stopped():
            return
        if maker.is_here and not maker.alive():
            if not detached:
                _cgroup.kill_members([group])
            # One in which a detached sandbox lives cannot be removed.
            _cgroup.try_remove([group])
    _cgroup.remove_unused_parents()


class Sweeper:
    """One sweep in the background, for which nobody waits."""

    def __init__(self, state: _state.StateDir, mine: Collection[str]) -> None:
        self._state = state
        self._mine = mine
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun before."""
        if self._thread is None:
            # A daemon: a program that ends does not wait for it either.
            self._thread = threading.Thread(target=self._run, name="sandboxkit-sweep", daemon=True)
            with suppress(RuntimeError):  # no thread starts while the interpreter ends
                self._thread.start()

    def _run(self) -> None:
        try:
            sweep(self._state, self._mine, self._stop.is_set)
        except (OSError, SandboxError) as error:
            _log.warning("what dead programs left here could not be removed: %s", error)

    def stop(self) -> None:
        """End early."""
        self._stop.set()

    @property
    def running(self) -> bool:
        """Whether it still works."""
        return self._thread is not None and self._thread.is_alive()
