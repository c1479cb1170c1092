"""Operations, from threads and coroutines: wait, as_completed, callbacks, and event loops of their callers."""

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

import pytest

from sandboxkit import Operation, Session, as_completed, wait
from sandboxkit._life import _loop
from sandboxkit.testing.fake import FakeBox, FakeProvider
from tests.pool.providers import on_the_loop


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
    made = [Operation(value(number, gate)) for number, gate in enumerate(gates)]
    opened = threading.Thread(
        target=lambda: [on_the_loop(gates[number].set) for number in (3, 1, 1)]
    )
    opened.start()
    assert wait(made, num_returns=2, timeout=30) == ([made[1], made[3]], [made[0], made[2]])
    opened.join()
    made[0].cancel()
    assert wait(made[:1], timeout=30) == ([made[0]], [])
    made[2].cancel()


def test_many_threads_can_wait_for_the_same_operations() -> None:
    gate = asyncio.Event()
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
    on_the_loop(gate.set)
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


Patch: TypeAlias = pytest.MonkeyPatch
_SHORT = ["sleep", "0.2"]
"""A command that has not ended before it is waited for."""

# Any of the ways to block; what each returns is of no interest.
BLOCKING: dict[str, Callable[[Session], object]] = {
    "result": lambda session: session.run(_SHORT).result(),
    "exception": lambda session: session.run(_SHORT).exception(),
    "wait": lambda session: wait([session.run(_SHORT)]),
    "as_completed": lambda session: list(as_completed([session.run(_SHORT)])),
    "for": lambda session: list(session.run(_SHORT).stdout),
}


@pytest.mark.parametrize("way", BLOCKING)
def test_blocking_an_event_loop_warns_at_the_callers_line(way: str) -> None:
    async def main() -> None:
        async with Session(FakeProvider()) as session:
            with pytest.warns(RuntimeWarning, match="blocks this thread's event loop") as found:
                BLOCKING[way](session)
            assert {each.filename for each in found} == {__file__}

    asyncio.run(main())


def test_leaving_a_plain_with_in_a_coroutine_warns_of_async_with(monkeypatch: Patch) -> None:
    delete = FakeBox.delete

    async def slow_delete(box: FakeBox) -> None:
        await asyncio.sleep(0.2)
        await delete(box)

    async def main() -> None:
        with (
            pytest.warns(RuntimeWarning, match="'async with'") as found,
            Session(FakeProvider()) as session,
        ):
            await session.sandbox().start()
        assert found[0].filename == __file__

    monkeypatch.setattr(FakeBox, "delete", slow_delete)
    asyncio.run(main())


def test_finished_operations_threads_and_prompts_do_not_warn(monkeypatch: Patch) -> None:
    async def main() -> None:
        done = Operation(value(1))
        assert await done == done.result() == 1
        assert await asyncio.to_thread(lambda: Operation(value(2)).result(60)) == 2
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        assert Operation(value(3)).result(60) == 3

    asyncio.run(main())


def test_callbacks_may_block_run_in_their_order_and_delay_no_call() -> None:
    seen: list[int] = []
    blocked, release, done = threading.Event(), threading.Event(), threading.Event()

    def block(_: object) -> None:
        blocked.set()
        assert release.wait(60)

    first = Operation(value(1))
    first.add_done_callback(block)
    first.add_done_callback(lambda op: seen.append(op.result() + Operation(value(1)).result(60)))
    first.add_done_callback(lambda _: done.set())
    assert blocked.wait(60)
    assert Operation(value(2)).result(60) == 2
    assert seen == []
    release.set()
    assert done.wait(60)
    assert seen == [2]


def test_an_error_in_a_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    operation = Operation(value(1))
    missing: dict[str, int] = {}
    operation.add_done_callback(lambda _: missing["missing"])
    operation.add_done_callback(lambda _: done.set())
    assert done.wait(60)
    assert [each.name for each in caplog.records] == ["sandboxkit"]
    assert "KeyError: 'missing'" in caplog.text


def test_trio_is_refused_before_anything_happens() -> None:
    trio = pytest.importorskip("trio")
    session = Session(FakeProvider())
    refused: list[str] = []

    async def main() -> str:
        calls: list[Callable[[], object]] = [
            lambda: Session(FakeProvider()),
            lambda: session.run(_SHORT),
            session.sandbox().stop,
            session.close,
        ]
        for call in calls:
            with pytest.raises(ValueError, match="asyncio, not under trio") as error:
                call()
            refused.append(str(error.value))
        result: str = await trio.to_thread.run_sync(
            lambda: session.run(["echo", "well"]).result(60).stdout
        )
        return result

    assert trio.run(main) == "well\n"
    assert len(refused) == 4
    session.close().result(60)


def test_operations_of_an_operation_do_not_wake_the_loop(monkeypatch: Patch) -> None:
    loop = _loop.get()
    wake = loop._write_to_self  # type: ignore[attr-defined]  # asyncio's own
    woken = 0

    def counted() -> None:
        nonlocal woken
        woken += 1
        wake()

    monkeypatch.setattr(loop, "_write_to_self", counted)

    async def many() -> list[int]:
        return [await Operation(value(n)) for n in range(100)]

    assert Operation(many()).result() == list(range(100))
    assert woken < 50
