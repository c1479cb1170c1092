"""The judge sandboxes of a session, reused for many submissions since only trusted tests run there."""

import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sandboxkit import Sandbox, SandboxError, Session
from sandboxkit.integrations.rewards import _programs

_AT_A_TIME = 8
"""Maximum number of judges at a time in one sandbox."""
_LIFETIME = 7200.0
"""Lifetime of a judge's sandbox in seconds."""
_AGE = 3600.0
"""Age in seconds at which a sandbox gets no more judges, well before its lifetime ends."""


@dataclass(slots=True)
class _IdleJudge:
    sandbox: Sandbox
    since: float
    users: int = 0
    usable: bool = True


class Judges:
    """The judge sandboxes of one session; closing the session stops them. Thread-safe, in any loop."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._lock = threading.Lock()
        self._kept: list[_IdleJudge] = []

    @contextlib.asynccontextmanager
    async def borrow(self, *, alone: bool = False) -> AsyncIterator[Sandbox]:
        """Yield a sandbox for one judge; with `alone`, a new one that no other judge uses.

        Afterwards the sandbox is kept for other judges; it is stopped if `alone` or after a SandboxError.
        """
        kept = self._take(alone)
        try:
            yield kept.sandbox
        except SandboxError as error:
            kept.usable = kept.usable and error.sandbox_id not in (None, kept.sandbox.id)
            raise
        finally:
            with self._lock:
                kept.users -= 1
                gone = not kept.users and (not kept.usable or alone)
                if not kept.usable and kept in self._kept:
                    self._kept.remove(kept)
            if gone:
                await kept.sandbox.stop()

    def _take(self, alone: bool) -> _IdleJudge:
        with self._lock:
            now = time.monotonic()
            for kept in self._kept:
                kept.usable = kept.usable and now - kept.since < _AGE
            free = [each for each in self._kept if each.usable and each.users < _AT_A_TIME]
            if alone or not free:
                kept = _IdleJudge(self._new(), now)
                if not alone:
                    self._kept.append(kept)
            else:
                kept = free[0]
            kept.users += 1
            return kept

    def _new(self) -> Sandbox:
        session = self._session()
        assert session is not None  # the caller of borrow() has a reference to it
        return session.sandbox(
            counted=False,
            command=None,
            files=_programs.judge_files(),
            network="none",
            profile="strict",
            lifetime=_LIFETIME,
            detach=False,
            reuse="never",
            interpreter=None,
        )


_of: "weakref.WeakKeyDictionary[Session, Judges]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def judges(session: Session) -> Judges:
    """Return the judges of a session."""
    with _lock:
        return _of.setdefault(session, Judges(session))
