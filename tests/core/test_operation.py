"""Operation, wait and as_completed, from threads and coroutines."""

import asyncio
import concurrent.futures
import threading

import pytest

from sandboxkit import Operation, as_completed, wait


async def value(result: int, after: asyncio.Event | None = None) -> int:
    if after is not None:
        await after.wait()
    return result


async def fail() -> int:
    raise LookupError("lost")


async def forever() -> int:
    await asyncio.Event().wait()
    return 0


def test_an_operation_can_be_awaited_on_any_event_loop() -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*[Operation(value(n)) for n in range(5)])

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_an_operation_can_be_awaited_on_the_background_loop() -> None:
    async def inner() -> int:
        return await Operation(value(3))

    assert Operation(inner()).result(60) == 3


@pytest.mark.parametrize("way", ["result", "wait"])
def test_blocking_the_background_loop_raises_instead_of_deadlocking(way: str) -> None:
    async def inner() -> object:
        operation = Operation(forever())
        return operation.result() if way == "result" else wait([operation])

    with pytest.raises(RuntimeError, match=r"use 'await'|wait\(\) would deadlock"):
        Operation(inner()).result(60)


def test_result_timeout_leaves_the_work_running() -> None:
    operation = Operation(forever())
    with pytest.raises(TimeoutError):
        operation.result(0.01)
    assert not operation.done()
    operation.cancel()


def test_cancelling_cancels_the_work() -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    started = threading.Event()
    operation = Operation(work())
    assert started.wait(60)
    assert operation.cancel()
    assert cancelled.wait(60)
    assert operation.cancelled()


def test_cancelling_the_awaiter_cancels_the_work() -> None:
    async def main() -> Operation[int]:
        operation = Operation(forever())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await operation
        return operation

    assert asyncio.run(main()).cancelled()


def test_cancelling_before_the_start_never_hangs_a_waiter() -> None:
    for _ in range(100):
        operation = Operation(forever())
        operation.cancel()
        assert concurrent.futures.wait([operation], 60).done == {operation}


def test_wait_returns_at_most_num_returns_in_input_order() -> None:
    slow, first, second = Operation(forever()), Operation(value(1)), Operation(value(2))
    concurrent.futures.wait([first, second])
    assert wait([slow], timeout=0.01) == ([], [slow])
    assert wait([first], timeout=0) == ([first], [])
    assert wait([slow, second, first], num_returns=2) == ([second, first], [slow])
    assert wait([slow, second, first], num_returns=1) == ([second], [slow, first])
    slow.cancel()


def test_wait_wakes_for_each_operation_that_ends() -> None:
    gates = [asyncio.Event() for _ in range(4)]

    async def gated(number: int) -> int:
        return await value(number, gates[number])

    async def open_gate(number: int) -> None:
        gates[number].set()

    made = [Operation(gated(number)) for number in range(4)]
    opened = threading.Thread(
        target=lambda: [Operation(open_gate(number)).result(60) for number in (3, 1, 1)]
    )
    opened.start()
    assert wait(made, num_returns=2, timeout=30) == ([made[1], made[3]], [made[0], made[2]])
    opened.join()
    made[0].cancel()
    assert wait(made[:1], timeout=30) == ([made[0]], [])
    made[2].cancel()


def test_many_threads_can_wait_for_the_same_operations() -> None:
    gate = asyncio.Event()

    async def release() -> None:
        gate.set()

    made = [Operation(value(number, gate)) for number in range(50)]
    found: list[int] = []

    def drain() -> None:
        pending = made
        while pending:
            done, pending = wait(pending, timeout=30)
            found.append(len(done))

    threads = [threading.Thread(target=drain) for _ in range(8)]
    for thread in threads:
        thread.start()
    Operation(release()).result(60)
    for thread in threads:
        thread.join()
    assert found == [1] * 400


def test_an_operation_given_twice_counts_once() -> None:
    first, slow = Operation(value(1)), Operation(forever())
    first.result(60)
    assert wait([first, slow, first], num_returns=1) == ([first], [slow])
    assert list(as_completed([first, first], timeout=60)) == [first]
    slow.cancel()


def test_wait_does_not_raise_an_operations_error() -> None:
    failed = Operation(fail())
    assert wait([failed]) == ([failed], [])
    with pytest.raises(LookupError, match="lost"):
        failed.result(60)


def test_as_completed_yields_as_they_finish() -> None:
    slow, fast = Operation(forever()), Operation(value(1))
    named = {slow: "slow", fast: "fast"}
    assert named[next(as_completed(named, timeout=60))] == "fast"
    slow.cancel()
