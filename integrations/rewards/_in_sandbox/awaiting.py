"""Let tests await the submission's coroutines on their own event loop. Runs in the judge's sandbox."""

from __future__ import annotations

import asyncio
from typing import Any  # Any: what coroutines return

_SLICE = 0.05
"""How long (s) the submission runs before the event loop runs the tests' own tasks again."""


class CoroutineRunner:
    """Runs the submission's coroutines, in its sandbox, while tests await them on one event loop."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._begin: list[int] = []
        self._cancel: list[int] = []
        self._task: asyncio.Task[None] | None = None

    async def wait(self, number: int) -> Any:
        """Return the result of the submission's coroutine `number`, or raise its exception.

        If the caller is cancelled, the submission's task is cancelled first.
        """
        loop = asyncio.get_running_loop()
        self._futures[number] = loop.create_future()
        self._begin.append(number)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        try:
            return await self._futures[number]
        except asyncio.CancelledError:
            self._cancel.append(number)
            ended = self._futures[number] = loop.create_future()
            await asyncio.wait([ended])
            ended.exception()  # retrieved, to avoid asyncio's warning: the tests get CancelledError
            raise
        finally:
            self._futures.pop(number, None)

    async def _run(self) -> None:
        while self._futures or self._cancel:
            begin, self._begin = self._begin, []
            cancel, self._cancel = self._cancel, []
            try:
                loop = self._connection.loop = asyncio.get_running_loop()
                ended = await loop.run_in_executor(
                    None, self._connection.run, begin, cancel, _SLICE
                )
            except BaseException as error:  # noqa: BLE001 - raised in every waiting call
                for future in self._futures.values():
                    if not future.done():
                        future.set_exception(_storable(error))
                return
            finally:
                self._connection.loop = None
            for number, result in ended:
                waiting = self._futures.get(number)
                if waiting is None or waiting.done():
                    continue
                try:
                    waiting.set_result(result())
                except BaseException as error:  # noqa: BLE001 - raised in the waiting call
                    waiting.set_exception(_storable(error))


def _storable(error: BaseException) -> BaseException:
    """Return the exception, or a RuntimeError for StopIteration, which no future can hold."""
    if isinstance(error, StopIteration):
        return RuntimeError("coroutine raised StopIteration")
    return error
