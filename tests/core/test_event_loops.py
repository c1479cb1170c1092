"""Callers that run an event loop of their own: asyncio's, trio's, and the callbacks of operations."""

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

from sandboxkit import Operation, Session, _loop, as_completed, wait
from sandboxkit.testing import FakeProvider


class Slow(FakeProvider):
    """Takes a while to delete a sandbox."""

    async def delete(self, sandbox_id: str) -> None:
        await asyncio.sleep(0.2)
        await super().delete(sandbox_id)


async def value(result: int) -> int:
    await asyncio.sleep(0.05)
    return result


async def at_once(result: int) -> int:
    return result


async def fail() -> int:
    raise LookupError("lost")


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


def test_leaving_a_plain_with_in_a_coroutine_warns_of_async_with() -> None:
    async def main() -> None:
        with (
            pytest.warns(RuntimeWarning, match="'async with'") as found,
            Session(Slow()) as session,
        ):
            await session.sandbox().start()
        assert found[0].filename == __file__

    asyncio.run(main())


def test_finished_operations_other_threads_and_prompts_do_not_warn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_an_error_in_a_callback_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
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


def test_operations_of_an_operation_do_not_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = _loop.get()
    wake = loop._write_to_self  # type: ignore[attr-defined]  # asyncio's own
    woken = 0

    def counted() -> None:
        nonlocal woken
        woken += 1
        wake()

    monkeypatch.setattr(loop, "_write_to_self", counted)

    async def many() -> list[int]:
        return [await Operation(at_once(n)) for n in range(100)]

    assert Operation(many()).result() == list(range(100))
    assert woken < 50
