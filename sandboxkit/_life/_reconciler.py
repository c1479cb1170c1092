"""The reconciler: keeps a session's records of its sandboxes consistent with the backend."""

import asyncio
import logging
import time

import anyio

from sandboxkit import _tags
from sandboxkit._lifecycle import Lifecycle, SessionContext, State
from sandboxkit._room._limiter import Limiter
from sandboxkit._room._waits import Wait
from sandboxkit.errors import SandboxError, SandboxNotFoundError
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxState

_log = logging.getLogger("sandboxkit")

_TICK = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 4.0
"""Retry delay (s) after a failed deletion; it doubles with each failure."""
_LIST_SECONDS, _LIST_SECONDS_BUSY = 2.0, 10.0
"""Interval (s) between listings while a start waits for room; the longer one applies if sandboxes of
the session have started or ended since the last listing."""
_RESPONSE_SECONDS = 8.0
_WARN_SECONDS, _WARN_AGAIN_SECONDS = 10.0, 60.0


class Reconciler:
    """Retries deletions and detects ended sandboxes, while needed; background loop only.

    When a call finds its sandbox gone, it checks that sandbox at the backend. While a start waits for
    room, in this session or in another one under the same `max_live`, it lists the backend's sandboxes.
    The room of missing sandboxes is released at once. If a start waits for ten seconds in which no
    sandbox of the session starts or ends, it logs a warning and publishes it for `sandboxkit top`.
    """

    def __init__(
        self, provider: Provider, context: SessionContext, session: str, limiter: Limiter
    ) -> None:
        """`session` is the id in the tags of the session's sandboxes."""
        self._provider, self._context, self._tags = provider, context, {_tags.SESSION: session}
        self._limiter = limiter
        self._suspects: set[Lifecycle] = set()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listed = self._warned = float("-inf")
        self._wait = Wait(session)
        self._closed = False

    def look(self, life: Lifecycle) -> None:
        """Check a sandbox soon: it waits for room, may have ended, or could not be deleted."""
        if self._closed:
            return  # the next close() retries
        if life.state is State.RUNNING:
            self._suspects.add(life)
        if self._timer is None and (self._task is None or self._task.done()):
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._begin)

    def close(self) -> None:
        """Stop checking; the session stops its sandboxes itself."""
        self._closed = True
        self._wait.withdraw()
        for each in (self._timer, self._task):
            if each is not None:
                each.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        lives = self._context.lives
        unsettled = (State.QUEUED, State.STUCK, State.LEFT_OVER)
        while (
            self._suspects
            or any(life.state in unsettled for life in lives)
            or (self._limiter.places is not None and lives)
        ):
            self._remove_again()
            await self._find_ended()
            self._warn()
            await anyio.sleep(_TICK)
        self._wait.withdraw()

    def _remove_again(self) -> None:
        for life in tuple(self._context.lives):
            pause = min(_FIRST_PAUSE * 2**life.failures, _LONGEST_PAUSE)
            if time.monotonic() < life.since + pause:
                continue
            if life.state is State.STUCK:
                life.stop()
            elif life.state is State.LEFT_OVER:
                life.remove_left_over()

    async def _find_ended(self) -> None:
        suspects, self._suspects = self._suspects & self._context.lives, set()
        now = time.monotonic()
        pause = _LIST_SECONDS_BUSY if self._context.moved > self._listed else _LIST_SECONDS
        queued = any(life.state is State.QUEUED for life in self._context.lives)
        if now > self._listed + pause and (queued or self._limiter.wanted()):
            suspects |= await self._unlisted()
            self._listed = now
        for life in suspects:
            if life.state is State.RUNNING and await self._is_gone(life):
                life.ended()

    async def _unlisted(self) -> set[Lifecycle]:
        """Return the lifecycles of running sandboxes that the backend does not list; none if it fails."""
        before = {life for life in self._context.lives if life.state is State.RUNNING}
        listed: set[str] = set()
        try:
            with anyio.fail_after(_RESPONSE_SECONDS):
                async for info in self._provider.list(self._tags):
                    if info.state is not SandboxState.STOPPED:
                        listed.add(info.id)
        except (SandboxError, TimeoutError):
            return set()
        return {life for life in before if life.id not in listed}

    async def _is_gone(self, life: Lifecycle) -> bool:
        """Return whether the backend reports the sandbox as gone; False if it does not respond."""
        assert life.box is not None
        try:
            with anyio.fail_after(_RESPONSE_SECONDS):
                return (await life.box.info()).state is SandboxState.STOPPED
        except SandboxNotFoundError:
            return True
        except (SandboxError, TimeoutError):
            return False

    def _warn(self) -> None:
        now = time.monotonic()
        waiting = [life for life in self._context.lives if life.state is State.QUEUED]
        longest = min((max(life.since, self._context.moved) for life in waiting), default=now)
        if now <= longest + _WARN_SECONDS:
            self._wait.withdraw()
            return
        text = (
            f"{len(waiting)} sandboxes wait for room, and none has started or ended for "
            f"{now - longest:.0f} s: {self._context.full()}"
        )
        self._wait.publish(text)
        if now > self._warned + _WARN_AGAIN_SECONDS:
            self._warned = now
            _log.warning("%s", text)
