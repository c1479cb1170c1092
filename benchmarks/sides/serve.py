"""One side of a comparison, as a process: it opens a piece of work, does it in turns, and times it.

It imports nothing but the standard library: each peer runs it in an environment of its own.
"""

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

IMAGE = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", "sandboxkit/python:3.11")
LABEL = os.environ.get("SANDBOXKIT_BENCH", "sandboxkit-bench")
"""Containers carry it, so that the harness can remove what a side left."""


class WrongOutputError(Exception):
    """A command did not print what it must: no time of it counts."""


def expect(what: str, got: object, wanted: object) -> None:
    """Raise WrongOutputError unless they are equal."""
    if got != wanted:
        raise WrongOutputError(f"{what}: got {got!r:.200}, not {wanted!r:.200}")


@dataclass(frozen=True, slots=True)
class Work:
    """What is done again and again, and checked each time."""

    one: Callable[[int], object]
    """Do the piece with that number, and return when its result is there; may be a coroutine."""
    finish: Callable[[], object] | None = None
    """What belongs to a turn besides, such as waiting for deletions; its time counts."""
    before: Callable[[], object] | None = None
    """What must be true before a turn, such as a full pool; its time does not count."""
    facts: Callable[[], dict[str, float]] | None = None
    """What else is told of a turn, when its time has been taken."""


def mbpp_rows(path: str) -> list[dict[str, Any]]:  # Any: a row of MBPP
    """The problems of a file, but for one.

    Problem 123's solution computes for 2.4 s, longer than a hundred others take together.
    """
    with open(path, encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["task_id"] != 123]


Measure = Callable[..., AbstractContextManager[Work] | AbstractAsyncContextManager[Work]]


def serve(version: str, measures: dict[str, Measure]) -> None:
    """Say the version and the measures, then carry out requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    asyncio.run(_Server(measures, answers).run(version))


class _Server:
    def __init__(self, measures: dict[str, Measure], answers: Any) -> None:
        self._measures, self._answers = measures, answers

    async def run(self, version: str) -> None:
        self._send({"version": version, "measures": sorted(self._measures)})
        requests = _lines()
        async for request in requests:
            if request["do"] == "open":
                await self._opened(request, requests)
            else:
                self._send({"error": "nothing is open"})

    async def _opened(self, request: dict[str, Any], requests: AsyncIterator[Any]) -> None:
        """Have a measure open until it is closed; a failure closes it."""
        try:
            context = self._measures[request["measure"]](**request["arguments"])
            if isinstance(context, AbstractContextManager):
                with context as work:
                    await self._turns(work, requests)
            else:
                async with context as work:
                    await self._turns(work, requests)
        except Exception as error:  # noqa: BLE001 - the harness says it
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            self._send({"error": f"{type(cause).__name__}: {cause}"[:500]})
        else:
            self._send({"closed": True})

    async def _turns(self, work: Work, requests: AsyncIterator[Any]) -> None:
        self._send({"open": True})
        async for request in requests:
            if request["do"] != "turn":
                return
            self._send(await turn(work, request["times"], request["in_flight"]))

    def _send(self, answer: object) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()


async def _lines() -> AsyncIterator[dict[str, Any]]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


async def turn(work: Work, times: int, in_flight: int) -> dict[str, float]:
    """Do the work `times` times, `in_flight` at a time; seconds of the clock and of our processor.

    Raises whatever one of them raises.
    """
    if work.before is not None:
        await _done(work.before())
    processor, started = time.process_time(), time.perf_counter()
    if inspect.iscoroutinefunction(work.one):
        await _tasks(work.one, times, in_flight)
    else:
        await asyncio.to_thread(_threads, work.one, times, in_flight)
    if work.finish is not None:
        await _done(work.finish())
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "processor": time.process_time() - processor,
        "resident_mb": _resident(),
        **(work.facts() if work.facts is not None else {}),
    }


def _threads(one: Callable[[int], object], times: int, many: int) -> None:
    if many == 1:
        for number in range(times):
            one(number)
    else:
        with ThreadPoolExecutor(many) as pool:
            list(pool.map(one, range(times)))


async def _tasks(one: Callable[[int], Coroutine[Any, Any, Any]], times: int, many: int) -> None:
    numbers = iter(range(times))

    async def work() -> None:
        for number in numbers:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(many):
            group.create_task(work())


async def _done(result: object) -> None:
    if isinstance(result, Awaitable):
        await result


def _resident() -> float:
    """Our resident memory in MB."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
