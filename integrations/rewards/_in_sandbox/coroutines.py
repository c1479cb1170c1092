"""Run the submission's coroutines on one event loop, in time slices. Runs in a sandbox."""

from __future__ import annotations

from typing import Any  # Any: coroutines and what they return


class Coroutines:
    """The coroutines that the tests await, as tasks of one event loop."""

    def __init__(self) -> None:
        # Imported here because this module is loaded before every submission, and few need asyncio.
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._tasks: dict[int, Any] = {}

    def run(self, begin: dict[int, Any], cancel: list[int], seconds: float) -> list[Any]:
        """Start and cancel coroutines by number, then run all until one ends or `seconds` pass.

        Returns, for each that ended, its number and a function that returns its result or raises.
        """
        return self._loop.run_until_complete(self._run(begin, cancel, seconds))

    async def _run(self, begin: dict[int, Any], cancel: list[int], seconds: float) -> list[Any]:
        import asyncio

        for number, each in begin.items():
            self._tasks[number] = asyncio.ensure_future(_finished(each))
        for number in cancel:
            if number in self._tasks:
                self._tasks[number].cancel()
        if self._tasks:
            await asyncio.wait(
                self._tasks.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        ended = [(number, task.result) for number, task in self._tasks.items() if task.done()]
        for number, _ in ended:
            del self._tasks[number]
        return ended


async def _finished(awaitable: Any) -> Any:
    return await awaitable
