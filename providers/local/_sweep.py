"""Removes what dead clients left on this machine: processes, control groups and folders.

A sweep leaves alone whatever a live process owns, starts in progress, and sandboxes of another pid
namespace that may be alive. Several sweeps may run at once.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from sandboxkit.errors import SandboxError
from sandboxkit.providers.local import _cgroup, _launch, _state
from sandboxkit.providers.local._readable import readable

_log = logging.getLogger("sandboxkit.local")
_PATIENCE = 2.0
"""Seconds to wait for killed processes to end."""
_MARK = re.compile(rb"(?:^|\0)" + _launch.MARK.encode() + rb"\0(local-[0-9a-f]{16})\0")


def sweep(
    state: _state.StateDir,
    mine: Callable[[str], bool],
    stopped: Callable[[], bool] = lambda: False,
) -> list[_state.SandboxRecord]:
    """Remove the remains of sandboxes whose owner is dead; return the sandboxes that are alive.

    Sandboxes for which `mine` is true are the caller's, which cleans up after them itself. The
    sweep ends early once `stopped` returns true.
    """
    living: list[_state.SandboxRecord] = []
    for meta in state:
        if stopped():
            return living
        if meta.orphaned:
            end(meta)
        elif state.alive(meta):
            living.append(meta)
            continue
        # A live owner may still read from the remains why the sandbox ended.
        if not mine(meta.id) and not meta.owned:
            _cgroup.kill_members(meta.cgroups)
            if _cgroup.remove(meta.cgroups):
                state.remove(state.folder(meta.id))
    for folder in state.cut_short():
        state.remove(folder)
    _sweep_starts(state, stopped)
    _sweep_groups(stopped)
    return living


def end(meta: _state.SandboxRecord, patience: float = _PATIENCE) -> None:
    """Kill a sandbox that this process does not run; wait at most twice `patience` (s) until it has ended."""
    pidfds = [_state.pinned(pid, started) for pid, started in meta.processes.items()]
    found = [pidfd for pidfd in pidfds if pidfd is not None]
    # PID 1 first: its monitor then ends by itself, after everything inside.
    for pidfd in reversed(found):
        if pidfd == found[-1]:
            _state.kill(pidfd)
        if not readable(pidfd, patience):
            _state.kill(pidfd)
        os.close(pidfd)


def _sweep_starts(state: _state.StateDir, stopped: Callable[[], bool]) -> None:
    """Remove starts whose client was killed before the sandbox was published."""
    abandoned = list(state.abandoned())
    try:
        # Bubblewrap's first process inside waits for the outer one, for ever if that dies: it has
        # no lifeline yet. Without control groups only the mark in its command line finds it.
        for pidfd in _marked({begun.sandbox_id for begun in abandoned}):
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


def _marked(ids: Collection[str]) -> list[int]:
    """Return pidfds of the processes that are about to execute the agent of one of these sandboxes."""
    found = []
    for entry in os.listdir("/proc") if ids else ():
        if entry.isdigit() and _mark(entry) in ids:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(int(entry))
                if _mark(entry) in ids:
                    found.append(pidfd)
                else:
                    os.close(pidfd)  # the pid was reused
    return found


def _mark(pid: str) -> str | None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            match = _MARK.search(file.read(4096))
    except OSError:
        return None  # the process is gone
    return None if match is None else match[1].decode()


def _sweep_groups(stopped: Callable[[], bool]) -> None:
    """Remove the control groups of dead makers, even if their state folder is gone."""
    for detached, group in _cgroup.abandoned():
        if stopped():
            return
        if not detached:
            _cgroup.kill_members([group])
        # The group of a live detached sandbox is in use, so this does not remove it.
        _cgroup.try_remove([group])
    _cgroup.remove_unused_parents()


class LocalSweeper:
    """Runs one sweep in a background thread, so that no call waits for it."""

    def __init__(self, state: _state.StateDir, mine: Callable[[str], bool]) -> None:
        self._state = state
        self._mine = mine
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the sweep, unless it was started before."""
        if self._thread is None:
            # A daemon thread, so that the interpreter's exit does not wait for it.
            self._thread = threading.Thread(target=self._run, name="sandboxkit-sweep", daemon=True)
            with suppress(RuntimeError):  # no thread starts while the interpreter ends
                self._thread.start()

    def _run(self) -> None:
        try:
            sweep(self._state, self._mine, self._stop.is_set)
        except (OSError, SandboxError) as error:
            _log.warning("remains of dead programs could not be removed: %s", error)

    def stop(self) -> None:
        """Make the sweep end early; does not wait for it."""
        self._stop.set()

    @property
    def running(self) -> bool:
        """Whether the sweep is still running."""
        return self._thread is not None and self._thread.is_alive()
