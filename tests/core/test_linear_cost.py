"""What costs the core time: never more than in proportion to what it is given."""

import asyncio
import gc
import sys
import time
from collections.abc import Callable

from sandboxkit import Operation, as_completed, wait
from sandboxkit import _operation as operations
from sandboxkit._streams import OutputStream

MEGABYTE = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread for the work: other load hardly changes it."""
    gc.collect()
    before = time.thread_time()
    work()
    return time.thread_time() - before


def ended(limit: int | None, chunk: bytes, count: int) -> OutputStream:
    """A stream that holds so many chunks; it is fed without a thread in between."""
    stream = OutputStream(limit)
    for _ in range(count):
        stream._keep(chunk)
    stream._end()
    return stream


def test_one_very_long_line_takes_linear_time() -> None:
    stream = ended(None, b"x" * 16_384, 40 * MEGABYTE // 16_384)
    started = time.thread_time()
    assert sum(map(len, stream.lines())) == 40 * MEGABYTE
    assert time.thread_time() - started < 10


async def _number(number: int) -> int:
    return number


async def _forever() -> int:
    await asyncio.Event().wait()
    return 0


def _drain(pending: list[Operation[int]]) -> None:
    count = len(pending)
    for left in range(count, 0, -1):
        done, pending = wait(pending)
        assert len(done) == 1
        assert len(pending) == left - 1


def test_a_drain_loop_over_3000_operations_takes_linear_time() -> None:
    made = [Operation(_number(number)) for number in range(3_000)]
    made[-1].result(30)
    assert seconds(lambda: _drain(made)) < 5  # with their square it was 22


def test_a_drain_loop_installs_no_callbacks_on_pending_operations() -> None:
    slow = [Operation(_forever()) for _ in range(3_000)]
    # Internals of concurrent.futures, which typeshed does not know.
    callbacks = [len(vars(each)["_done_callbacks"]) for each in slow]

    def poll() -> None:
        for number in range(100):
            fast = Operation(_number(number))
            fast.result(30)
            done, _ = wait([*slow, fast])
            assert done == [fast]

    assert seconds(poll) < 5
    assert [len(vars(each)["_done_callbacks"]) for each in slow] == callbacks
    assert not any(each._waiters for each in slow)
    assert not operations._waiters
    for each in slow:
        each.cancel()


def test_as_completed_takes_linear_time() -> None:
    made = [Operation(_number(number)) for number in range(10_000)]
    made[-1].result(30)
    assert seconds(lambda: sum(1 for _ in as_completed(made))) < 5


def test_finished_operations_are_not_kept() -> None:
    made = [Operation(_number(number)) for number in range(1_000)]
    wait(made, num_returns=len(made), timeout=60)
    Operation(_number(0)).result(60)  # by then the loop's thread has let go of them
    assert not operations._unfinished.intersection(made)
    one = made.pop()
    made.clear()
    gc.collect()
    assert sys.getrefcount(one) <= 3
