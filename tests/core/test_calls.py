"""How many Python calls one job costs this process: a number that load does not change."""

import cProfile
import pstats
import sys
from collections.abc import Callable

import pytest

from sandboxkit import Interpreter, Operation, Session

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="from Python 3.12 only one thread can be profiled at a time"
)
TIMES = 40


async def _on_loop(change: Callable[[], None]) -> None:
    change()


def calls(job: Callable[[], object]) -> float:
    """Return the calls of one job, in this thread and on the background loop together."""
    for _ in range(10):
        job()
    here, there = cProfile.Profile(), cProfile.Profile()
    Operation(_on_loop(there.enable)).result()
    here.enable()
    for _ in range(TIMES):
        job()
    here.disable()
    Operation(_on_loop(there.disable)).result()
    stats = [vars(pstats.Stats(each)) for each in (here, there)]
    return float(sum(each["total_calls"] for each in stats)) / TIMES


def _least(job: Callable[[], object], below: float) -> float:
    """Return the calls of one job: the least of three times, of which the first that is `below` ends."""
    found = calls(job)
    for _ in range(2):
        if found >= below:
            found = min(found, calls(job))
    return found


def test_a_job_in_a_pool_costs_a_bounded_number_of_calls() -> None:
    with Session(
        "local",
        pool=2,
        max_concurrency=2,
        profile="strict",
        reuse="reset",
        interpreter=Interpreter(preload=("json",)),
    ) as session:
        session.warm().result()
        # 1,550 to 1,610, as the threads meet; 2,124 before anything was saved. Of several, on a busy machine
        # the least has to be small: threads that wait for each other make calls of their own.
        assert _least(lambda: session.run_python("pass").result(), below=1850) < 1850


def test_a_command_costs_a_bounded_number_of_calls() -> None:
    with Session("local") as session, session.sandbox() as box:
        assert _least(lambda: box.exec(["true"]).result(), below=650) < 650
