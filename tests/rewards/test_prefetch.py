"""Runs that take turns in a pool's sandboxes: how many there are, and which come before others."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, grading_session
from sandboxkit.integrations.rewards._prefetch import PrefetchQueue
from sandboxkit.provider import FirstCommand
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec

pytestmark = [pytest.mark.timeout(120), pytest.mark.anyio]
CASES = [{"args": [number], "expected": number + 1} for number in range(5)]
TASK = {"entry_point": "f", "cases": CASES}


class Counted(LocalProvider):
    made = 0

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        self.made += 1
        return await super().create(spec, first)


def runs(done: list[int], wait: asyncio.Event) -> list[Callable[[], Awaitable[int]]]:
    """Five: the first waits, and each says when it has ended."""

    async def run(number: int) -> int:
        if number == 0:
            await wait.wait()
        done.append(number)
        return number

    return [functools.partial(run, number) for number in range(5)]


async def test_results_come_in_order_from_runs_that_began_early() -> None:
    done, wait = list[int](), asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, wait.set)
    async with aclosing(PrefetchQueue(3).in_order(runs(done, wait))) as results:
        assert [each async for each in results] == [0, 1, 2, 3, 4]
    assert done[:3] == [1, 2, 0]


async def test_prefetching_waits_while_others_hold_the_room() -> None:
    first, second = list[int](), list[int]()
    queue, wait, ready = PrefetchQueue(1), asyncio.Event(), asyncio.Event()
    ready.set()
    async with aclosing(queue.in_order(runs(first, wait))) as held:
        pending = asyncio.ensure_future(anext(held))
        await asyncio.sleep(0)
        async with aclosing(queue.in_order(runs(second, ready))) as results:
            assert await anext(results) == 0
        wait.set()
        assert await pending == 0
    assert (first, second) == ([0], [0])


async def test_unneeded_runs_are_cancelled() -> None:
    ended = list[int]()

    async def endless(number: int) -> int:
        try:
            if number:
                await asyncio.Event().wait()
        finally:
            ended.append(number)
        return number

    works = [functools.partial(endless, number) for number in range(4)]
    async with aclosing(PrefetchQueue(2).in_order(works)) as results:
        assert await anext(results) == 0
    assert ended == [0, 1]


async def test_prefetching_creates_at_most_the_pools_sandboxes() -> None:
    provider = Counted()
    grader = HostCompare(Limits(timeout=30))
    async with grading_session(grader, provider, max_concurrency=3) as session:
        wrong, right = "def f(x): return x if x == 2 else x + 1", "def f(x): return x + 1"
        graded = [grader.grade(session, code, TASK) for code in [wrong, right] * 8]
        verdicts = await asyncio.gather(*graded)
        assert session.pool_stats().thrown_away == {}
    assert [each.outcome for each in verdicts] == [Outcome.FAILED, Outcome.PASSED] * 8
    assert {each.detail for each in verdicts[::2]} == {"f(2) does not have the expected value"}
    assert provider.made == 3


def test_a_provider_that_cannot_reset_gets_no_pool() -> None:
    assert grading_session(HostCompare(), FakeProvider()).pool == 0
    assert grading_session(HostCompare(Limits(reuse="never")), "local").pool == 0
    assert grading_session(HostCompare(), "local", max_concurrency=5).pool == 5


async def test_resetting_without_a_pool_is_refused() -> None:
    async with Session("local") as session:
        with pytest.raises(ConfigurationError, match="needs a pool"):
            await HostCompare(Limits(reuse="reset")).grade(session, "def f(x): return x", TASK)
