"""Creates a sandbox at most once: after an ambiguous failure, it finds the sandbox by the attempt's key."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import anyio
import anyio.lowlevel

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError, SandboxError
from sandboxkit.provider import Box
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, as_unavailable

_BoxT = TypeVar("_BoxT", bound=Box)
_Find = Callable[[], Awaitable[Sequence[_BoxT]]]

_LOOKS = (0.0, 0.2, 0.4, 0.8)
"""Delay (s) before each lookup, because listings may show a new sandbox late."""
_SEARCH_SECONDS = 1.8
_RETRY_SECONDS = 2.0
"""How long (s) cleaning up after earlier attempts may delay a creation."""
_LATE_SECONDS = 12.0
"""After this time (s) the vendor no longer carries out a call whose response was lost."""
_SETTLE_SECONDS = 15.0
_PAUSE = 0.5
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A possible leftover. `find` lists its sandboxes; after the time `known`, an empty list is final."""

    find: _Find[Box]
    known: float


class Creations:
    """Creates a provider's sandboxes and tracks the leftovers that could not be removed yet."""

    def __init__(self, *, provider: str) -> None:
        self._provider = provider
        self._left: dict[str, _Leftover] = {}
        """Leftovers by their name in error messages; `settle` removes them."""
        self._why: SandboxError | None = None
        self._retrying = False

    async def once(
        self, create: Callable[[], Awaitable[_BoxT]], find: _Find[_BoxT], *, left: str
    ) -> _BoxT:
        """Create a sandbox and return it; a failed or cancelled creation leaves none behind.

        `create` stores a key of this attempt with the sandbox and must end within its own deadline;
        `find` lists the sandboxes with this key. After an AmbiguousError, the first sandbox found is used and
        any other is deleted. If none is found, the vendor may still carry out the call: this raises
        ProviderUnavailableError, whose message names `left`, such as "a sandbox named 'x'", and each
        later creation, as well as `settle`, searches again.
        """
        await self._retry()
        # Shielded, because the vendor would carry out a cancelled call, and its id would be lost.
        box: _BoxT | None = None
        with anyio.CancelScope(shield=True):
            try:
                box = await create()
            except AmbiguousError as error:
                box = await self._search(find, error, left)
        assert box is not None  # nothing cancels that scope
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            await self.discard(box, error)
            raise
        return box

    @asynccontextmanager
    async def preparing(self, box: Box) -> AsyncIterator[None]:
        """Context for preparing a new sandbox: an error in it deletes the sandbox.

        Raises ProviderUnavailableError, which is retryable, instead of OutcomeUnknownError, because the
        deletion undoes the effects of any command.
        """
        try:
            yield
        except OutcomeUnknownError as error:
            unavailable = ProviderUnavailableError(
                f"the sandbox was created, but could not be prepared: {error}"
            )
            await self.discard(box, unavailable)
            raise unavailable from error
        except BaseException as error:
            await self.discard(box, error)
            raise

    async def discard(self, box: Box, error: BaseException) -> None:
        """Delete a sandbox after `error`. A failed deletion is retried later and noted on `error`."""
        with anyio.CancelScope(shield=True):
            try:
                await box.delete()
            except SandboxError as failure:
                error.add_note(f"and {box.id} could not be removed yet: {failure}")

                async def find() -> Sequence[Box]:
                    return [box]

                self._left[f"sandbox {box.id!r}"] = _Leftover(find, anyio.current_time())

    async def settle(self) -> None:
        """Remove all leftovers; return at once if there are none.

        Raises ProviderUnavailableError, which names those that could not be removed.
        """
        with anyio.CancelScope(shield=True), anyio.move_on_after(_SETTLE_SECONDS):
            while self._left:
                await self._remove_all()
                if self._left:
                    await anyio.sleep(_PAUSE)
        if self._left:
            raise ProviderUnavailableError(
                f"these sandboxes may run at {self._provider} until their lifetimes end: "
                f"{', '.join(self._left)}; they could not be found and removed "
                f"({self._why or 'no answer'}); close the provider again, or list them with "
                "`sandboxkit ls`"
            )

    async def _search(self, find: _Find[_BoxT], error: AmbiguousError, left: str) -> _BoxT:
        found: Sequence[_BoxT] = ()
        failure: SandboxError | None = None
        with anyio.move_on_after(_SEARCH_SECONDS):
            for pause in _LOOKS:
                await anyio.sleep(pause)
                try:
                    found = await find()
                except SandboxError as failed:
                    failure = failed
                if found:
                    break
        for extra in found[1:]:
            await self.discard(extra, error)
        if found:
            return found[0]
        if failure is not None:
            error.add_note(f"and the search for what it created failed: {failure}")
        self._left[left] = _Leftover(find, anyio.current_time() + _LATE_SECONDS)
        text = (
            f"{error}; {left} may exist, if the request was carried out anyway: a search for it will be "
            "repeated, at the latest when the provider is closed"
        )
        raise as_unavailable(error, text) from error

    async def _retry(self) -> None:
        if not self._left or self._retrying:
            return
        self._retrying = True
        try:
            with anyio.move_on_after(_RETRY_SECONDS):
                await self._remove_all()
        finally:
            self._retrying = False

    async def _remove_all(self) -> None:
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def remove(name: str, left: _Leftover) -> None:
            async with limiter:
                try:
                    found = await left.find()
                    for box in found:
                        await box.delete()
                except SandboxError as error:
                    self._why = error
                    return
            if found or anyio.current_time() > left.known:
                self._left.pop(name, None)

        async with anyio.create_task_group() as group:
            for name, left in list(self._left.items()):
                group.start_soon(remove, name, left)
