"""Waits for a pod to start: gets the first stream to its agent, or raises why there will be none."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotFoundError
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._parts import PART
from sandboxkit.providers.kubernetes._watch import PodStatus, PodWatch

_KNOCK_SECONDS = 3.0
"""How long (s) connection attempts are frequent, and the time limit of one attempt."""
_OFTEN, _SELDOM = 0.1, 1.0
_END_SECONDS = 3.0


class Start:
    """One pod's start, which may take at most `seconds`."""

    def __init__(
        self,
        api: Api,
        watch: PodWatch,
        name: str,
        connect: Callable[[], Awaitable[PodExecStream]],
        restore: Callable[[], Awaitable[object]],
        *,
        seconds: float,
    ) -> None:
        """`restore` recreates the agent's ConfigMaps when somebody has deleted them."""
        self._api, self._watch, self._name, self._connect = api, watch, name, connect
        self._restore = restore
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    @property
    def is_late(self) -> bool:
        """Whether the start's time limit has passed."""
        return time.monotonic() > self._deadline

    async def stream(self) -> PodExecStream:
        """Return a stream to the program that connects to the agent, which may not listen yet.

        Raises the errors of `Provider.create` when the pod will not start.
        """
        stream = await self._attempt()
        while stream is None:
            await anyio.sleep(_SELDOM)
            stream = await self._attempt()
        return stream

    async def _attempt(self) -> PodExecStream | None:
        """Return what `stream` returns, or None if the pod may start although it looks as if it would not."""
        seen = await self._until(_placed)
        placed, looked = time.monotonic(), False
        while not _decided(seen):
            if not looked and time.monotonic() - placed > _KNOCK_SECONDS:
                looked = True
                if any(map(_lacks_agent, await _ends.events_of(self._api, self._name))):
                    await self._restore()
            # A node reports a start up to 1 s after the container is usable, so try to connect before.
            with anyio.move_on_after(_KNOCK_SECONDS):
                try:
                    return await self._connect()
                except (SandboxNotFoundError, ProviderUnavailableError):
                    pass
            pause = _OFTEN if time.monotonic() - placed < _KNOCK_SECONDS else _SELDOM
            try:
                left = self._deadline - time.monotonic()
                seen = await self._watch.until(self._name, _decided, seconds=min(pause, left))
            except TimeoutError:
                seen = await self._until(_placed)
        if _ends.is_running(seen):
            try:
                return await self._connect()
            except SandboxNotFoundError as error:  # its container has ended since
                raise await self.explain(error, refused=True) from error
        events = await _ends.events_of(self._api, self._name)
        if _ends.was_denied_once(seen, events):
            return None
        raise _ends.start_error(seen, events) or self._late(events)

    async def explain(self, error: SandboxError, *, refused: bool) -> SandboxError:
        """Return the error for an agent that could not be reached; `refused`: the agent closed the connection with a reason."""
        try:
            seen = await self._watch.until(self._name, _ends.has_ended, seconds=_END_SECONDS)
        except (SandboxError, TimeoutError):
            if refused:
                return error
            return ProviderUnavailableError(
                f"the connection to {self._name!r} broke while it was being opened: {error}",
                sandbox_id=self._name,
            )
        events = await _ends.events_of(self._api, self._name)
        return _ends.start_error(seen, events) or error

    async def _until(self, predicate: Callable[[PodStatus], bool]) -> PodStatus:
        left = self._deadline - time.monotonic()
        try:
            if left > 0:
                return await self._watch.until(self._name, predicate, seconds=left)
        except TimeoutError:
            pass
        raise self._late(await _ends.events_of(self._api, self._name))

    # Any: events are JSON.
    def _late(self, events: Sequence[Any]) -> SandboxError:
        return _ends.late_error(self._watch.last(self._name), events, seconds=self._seconds)


# Any: an event is JSON.
def _lacks_agent(event: Mapping[str, Any]) -> bool:
    message = str(event.get("message"))
    return event.get("reason") == "FailedMount" and PART in message and "not found" in message


def _decided(seen: PodStatus) -> bool:
    return _ends.is_running(seen) or _ends.start_error(seen) is not None


def _placed(seen: PodStatus) -> bool:
    return bool(seen.pod["spec"].get("nodeName")) or _decided(seen)
