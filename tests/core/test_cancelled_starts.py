"""A start belongs to those who wait for it: when the last has given up, nothing is left of it."""

import asyncio
from typing import TypeVar

import anyio
import pytest

from sandboxkit import Operation, Session, _operation
from sandboxkit._lifecycle import State
from sandboxkit.errors import ConfigurationError, SandboxError, SandboxTerminatedError
from sandboxkit.provider import FirstCommand
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import SandboxSpec
from tests.pool.providers import Failing, Gated, interrupt, on_the_loop, settled

T = TypeVar("T")


class Shielded(Gated):
    """Cannot be cancelled: it returns a sandbox all the same."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        create = asyncio.ensure_future(super().create(spec, first))
        with anyio.CancelScope(shield=True):
            await create
        return create.result()


@pytest.mark.parametrize("kind", [Gated, Shielded])
def test_after_the_last_waiter_the_next_use_starts_again(kind: type[Gated]) -> None:
    """The start of a Shielded one is still being undone by then."""
    provider = kind(at_end=True)
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox()
        processes = [sandbox.exec(["true"]) for _ in range(3)]
        assert provider.entered.acquire(timeout=60)
        for process in processes:
            process.cancel()
        if kind is Gated:
            assert provider.undone.acquire(timeout=60)
        again = sandbox.exec(["true"])
        on_the_loop(lambda: None)
        provider.open()
        assert again.result(60).returncode == 0
        assert list(provider.boxes) == [sandbox.id]
        assert provider.creates == 2


@pytest.mark.parametrize(
    ("kind", "call"), [(Gated, "cancel"), (Gated, "kill"), (Shielded, "cancel")]
)
def test_a_run_that_is_ended_as_it_starts_leaves_nothing(kind: type[Gated], call: str) -> None:
    provider = kind(at_end=True)
    with Session(provider, max_concurrency=1) as session:
        process = session.run(["true"])
        assert provider.entered.acquire(timeout=60)
        getattr(process, call)()
        if call == "kill":
            assert process.result(60).returncode == 137
        if kind is Gated:
            assert provider.undone.acquire(timeout=60)
        provider.open()
        settled(session, provider)


def test_an_interrupt_after_the_start_stops_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=1) as session:
        result = Operation.result

        def interrupted(self: Operation[T], timeout: float | None = None) -> T:
            result(self, timeout)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Operation, "result", interrupted)
            with pytest.raises(KeyboardInterrupt), session.sandbox(detach=True):
                raise AssertionError
        settled(session, provider)


def test_a_task_cancelled_just_as_the_start_ended_stops_the_sandbox() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox()

        async def enter() -> None:
            async with sandbox:
                raise AssertionError

        async def main() -> None:
            task = asyncio.create_task(enter())
            await asyncio.sleep(0)  # it waits for the start
            while sandbox.id is None:
                pass  # this loop cannot hear of the start's end before the cancellation
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        settled(session, provider)


def test_a_start_cancelled_while_it_waits_takes_no_slot() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=1) as session:
        with session.sandbox() as sandbox:
            waiting = [session.sandbox().exec(["true"]) for _ in range(3)]
            waiting.append(session.run(["true"]))
            adopting = session.adopt(sandbox)
            on_the_loop(lambda: None)
            assert all(process.cancel() for process in waiting)
            assert adopting.cancel()
        settled(session, provider)


def test_a_cancelled_start_of_a_sandbox_reached_by_its_id_does_not_delete_it() -> None:
    with Session(FakeProvider()) as owner, owner.sandbox() as sandbox:
        reached = owner.from_id(str(sandbox.id)).result(60)

        async def start_and_lose() -> None:
            await reached._life.started()
            reached._life.lost()

        Operation(start_and_lose()).result(60)
        assert sandbox.exec(["true"]).result(60).returncode == 0
        assert reached.id == sandbox.id


def test_an_adoption_that_waits_when_the_session_closes_is_refused() -> None:
    provider = FakeProvider()
    with Session(provider) as owner, owner.sandbox() as sandbox:
        session = Session(provider, max_concurrency=1)
        session.sandbox().start().result(60)
        adopting = session.adopt(sandbox)
        on_the_loop(lambda: None)
        session.close().result(60)
        with pytest.raises(ConfigurationError, match="is closed"):
            adopting.result(60)
        assert list(provider.boxes) == [sandbox.id]


def test_a_ctrl_c_during_a_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operation, "INTERRUPTED_SECONDS", 0.1)  # it is undone only afterwards
    provider = Gated(at_end=True)
    with Session(provider, max_concurrency=1) as session:
        interrupt(provider.entered)
        with pytest.raises(KeyboardInterrupt), session.sandbox():
            raise AssertionError
        assert provider.undone.acquire(timeout=60)
        provider.open()
        settled(session, provider)


@pytest.mark.parametrize("by", ["stop", "close"])
def test_stop_waits_for_a_start_that_is_undone(by: str) -> None:
    provider = Shielded()
    session = Session(provider, max_concurrency=1)
    sandbox = session.sandbox()
    process = sandbox.exec(["true"])
    assert provider.entered.acquire(timeout=60)
    process.cancel()
    ending = sandbox.stop() if by == "stop" else session.close()
    on_the_loop(lambda: None)
    assert not ending.done()
    provider.open()
    ending.result(60)
    assert not provider.boxes
    session.close().result(60)


def test_close_undoes_starts_that_callers_wait_for() -> None:
    provider = Gated(at_end=True)
    session = Session(provider, max_concurrency=1)
    starting, waiting = session.sandbox().start(), session.sandbox().start()
    assert provider.entered.acquire(timeout=60)
    on_the_loop(lambda: None)
    session.close().result(60)
    for operation in (starting, waiting):
        with pytest.raises(SandboxTerminatedError, match="was stopped"):
            operation.result(60)
    assert not provider.boxes


@pytest.mark.parametrize("by", ["stop", "close"])
def test_a_stop_without_waiters_still_completes(by: str) -> None:
    provider = FakeProvider()
    session = Session(provider, max_concurrency=1)
    sandbox = session.sandbox().start().result(60)

    def on_the_same_turn() -> bool:  # before the loop can begin either
        if by == "stop":
            return sandbox.stop().cancel()
        return session.close().cancel()

    assert on_the_loop(on_the_same_turn)
    session.close().result(60)
    assert not provider.boxes


def test_a_cancelled_exit_still_frees_the_slot() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=1) as session:

        async def main() -> None:
            async with session.sandbox():
                current = asyncio.current_task()
                assert current is not None
                current.cancel()

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
        settled(session, provider)


# It runs, and then there is no room for this file.
FILES = {"/workspace/1": b"1", "/dev/null/2": b"2"}


@pytest.mark.parametrize("failures", [0, 1])
def test_files_that_fail_midway_leave_nothing_after_the_next_start(failures: int) -> None:
    provider = Failing(failures)
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox(files=FILES)
        for _ in range(1 + failures):
            with pytest.raises(SandboxError, match="/dev/null"):
                sandbox.start().result(60)
        settled(session, provider)


def test_stop_removes_the_remains_of_a_failed_start() -> None:
    provider = Failing(failures=1)
    with Session(provider, max_concurrency=1) as session:
        with pytest.raises(SandboxError, match="/dev/null") as caught:
            session.sandbox(files=FILES).start().result(60)
        (note,) = caught.value.__notes__
        assert note == "and it could not be removed yet: the connection was reset"
        assert len(provider.boxes) == 1
    assert not provider.boxes


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("hops", range(6))
def test_a_caller_cancelled_as_the_start_ends_undoes_it_only_if_alone(
    others: int, hops: int
) -> None:
    with Session(FakeProvider()) as session:
        life = session.sandbox()._life

        async def cancelled_and_kept() -> tuple[bool, bool]:
            callers = [asyncio.create_task(life.started()) for _ in range(1 + others)]
            while life.state is not State.RUNNING:
                await asyncio.sleep(0)
            for _ in range(hops):
                await asyncio.sleep(0)
            callers[-1].cancel()
            await asyncio.wait(callers)
            return callers[-1].cancelled(), life.state is State.RUNNING

        cancelled, kept = Operation(cancelled_and_kept()).result(60)
        assert kept == (others == 1 or not cancelled)
