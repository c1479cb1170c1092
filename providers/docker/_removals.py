"""Removals of what failed creations may have made: begun at once, waited for within reason."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError

__all__ = ["Removals"]


class Removals:
    """Goes on removing where its caller gave up waiting; `finish` says what is left."""

    def __init__(self, delete: Callable[[str], Awaitable[None]]) -> None:
        self._delete = delete
        self._left: dict[str, SandboxError | None] = {}
        """To be removed, and why that failed last."""
        self._unanswered: set[str] = set()
        """Whose creation the daemon may yet carry out, so that a removal before says nothing."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def undo(self, name: str, *, answered: bool, seconds: float) -> None:
        """Remove it, and wait so long for that, cancelled or not.

        `answered`: whether the daemon said what became of its creation.
        """
        if not answered:
            self._unanswered.add(name)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._begin(name)], timeout=seconds)

    def retry(self) -> None:
        """Begin again with those whose removal failed."""
        for name, failure in tuple(self._left.items()):
            if failure is not None:
                self._begin(name)

    async def finish(self) -> None:
        """Try all that are left once more; raises ProviderUnavailableError that names the rest."""
        with anyio.CancelScope(shield=True):
            if self._tasks:
                await asyncio.wait(list(self._tasks.values()))
            unanswered, self._unanswered = self._unanswered, set()
            if tasks := [self._begin(name) for name in {*self._left, *unanswered}]:
                await asyncio.wait(tasks)
        if self._left:
            names = " ".join(sorted(self._left))
            raise ProviderUnavailableError(
                f"Docker did not remove {names}: {next(iter(self._left.values()))}. Close again, "
                f"or remove them once it answers: docker rm --force {names}",
                provider="docker",
            )

    def _begin(self, name: str) -> "asyncio.Task[None]":
        task = self._tasks.get(name)
        if task is None:
            self._left.setdefault(name, None)
            # Beside whoever asks: it outlives the call that failed, and aclose() waits for it.
            task = self._tasks[name] = asyncio.create_task(self._remove(name))
        return task

    async def _remove(self, name: str) -> None:
        try:
            await self._delete(name)
            del self._left[name]
        except SandboxError as error:
            self._left[name] = error
        finally:
            del self._tasks[name]
