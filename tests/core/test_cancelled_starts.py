"""A start belongs to those who wait for it: when the last has given up, nothing is left of it."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import pytest

from sandboxkit import ConfigurationError, Operation, SandboxError, SandboxTerminatedError, Session
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec

T = TypeVar("T")


class Gated(FakeProvider):
    """Holds each create, at its beginning or at its end, until it is let go."""

    def __init__(self, *, at_end: bool = False) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.undone = threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.at_end = at_end
        self.creates = 0

    def open(self) -> None:
        """Let every create go on."""
        on_the_loop(self.gate.set)

    async def create(self, spec: SandboxSpec) -> str:
        self.creates += 1
        sandbox_id = await super().create(spec) if self.at_end else ""
        self.entered.release()
        try:
            await self.gate.wait()
        except BaseException:
            if sandbox_id:
                await self.delete(sandbox_id)
            self.undone.release()
            raise
        return sandbox_id or await super().create(spec)


class Shielded(Gated):
    """Cannot be cancelled: it returns a sandbox all the same."""

    async def create(self, spec: SandboxSpec) -> str:
        create = asyncio.ensure_future(super().create(spec))
        with anyio.CancelScope(shield=True):
            await create
        return create.result()


def on_the_loop(call: Callable[[], T]) -> T:
    async def run() -> T:
        return call()

    return Operation(run()).result(60)


def settled(session: Session, provider: FakeProvider) -> None:
    """Whoever starts now gets a slot; once the session is closed, nothing is there."""
    with session.sandbox() as sandbox:
        assert sandbox.exec(["true"]).result(60).returncode == 0
    session.close().result(60)
    assert not provider._boxes
    assert not session._sandboxes


@pytest.mark.parametrize("at_end", [False, True])
def test_starts_that_were_cancelled_do_not_block_their_session(at_end: bool) -> None:
    provider = Gated(at_end=at_end)
    with Session(provider, max_concurrency=2) as session:

        async def main() -> None:
            for _ in range(4):  # twice what there is room for
                task = asyncio.create_task(enter())
                await asyncio.to_thread(provider.entered.acquire, timeout=60)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        async def enter() -> None:
            async with session.sandbox():
                raise AssertionError

        asyncio.run(main())
        provider.open()
        settled(session, provider)


def test_a_timeout_during_a_start_releases_its_room() -> None:
    provider = Gated()
    with Session(provider, max_concurrency=2) as session:

        async def main() -> None:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02), session.sandbox():
                        raise AssertionError

        asyncio.run(main())
        provider.open()
        settled(session, provider)


def test_a_start_goes_on_while_one_waiter_is_left() -> None:
    provider = Gated()
    with Session(provider) as session:
        sandbox = session.sandbox()
        first, second = sandbox.exec(["true"]), sandbox.exec(["true"])
        assert provider.entered.acquire(timeout=60)
        first.cancel()
        on_the_loop(lambda: None)
        provider.open()
        assert second.result(60).returncode == 0
        assert provider.creates == 1


def test_after_the_last_waiter_the_next_use_starts_again() -> None:
    provider = Gated(at_end=True)
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox()
        processes = [sandbox.exec(["true"]) for _ in range(3)]
        assert provider.entered.acquire(timeout=60)
        for process in processes:
            process.cancel()
        assert provider.undone.acquire(timeout=60)
        again = sandbox.exec(["true"])
        assert provider.entered.acquire(timeout=60)
        provider.open()
        assert again.result(60).returncode == 0
        assert list(provider._boxes) == [sandbox.id]
        assert provider.creates == 2


def test_a_call_while_a_start_is_undone_starts_again() -> None:
    provider = Shielded()
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox()
        first = sandbox.exec(["true"])
        assert provider.entered.acquire(timeout=60)
        first.cancel()
        second = sandbox.exec(["true"])
        on_the_loop(lambda: None)
        provider.open()
        assert second.result(60).returncode == 0
        assert list(provider._boxes) == [sandbox.id]
        assert provider.creates == 2


def test_a_create_that_did_not_notice_its_cancellation_leaves_nothing() -> None:
    provider = Shielded()
    with Session(provider, max_concurrency=1) as session:
        process = session.sandbox().exec(["true"])
        assert provider.entered.acquire(timeout=60)
        process.cancel()
        provider.open()
        settled(session, provider)


def test_run_cancelled_while_it_starts_leaves_nothing() -> None:
    provider = Gated(at_end=True)
    with Session(provider, max_concurrency=1) as session:
        process = session.run(["true"])
        assert provider.entered.acquire(timeout=60)
        process.cancel()
        assert provider.undone.acquire(timeout=60)
        provider.open()
        settled(session, provider)


def test_kill_while_it_starts_leaves_nothing_of_run() -> None:
    provider = Gated()
    with Session(provider, max_concurrency=1) as session:
        process = session.run(["true"])
        assert provider.entered.acquire(timeout=60)
        process.kill()
        assert process.result(60).returncode == 137
        provider.open()
        settled(session, provider)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_entering_that_is_interrupted_after_the_start_stops_the_sandbox(
    interruption: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=1) as session:
        result = Operation.result

        def interrupted(self: Operation[T], timeout: float | None = None) -> T:
            result(self, timeout)
            raise interruption

        with monkeypatch.context() as patched:
            patched.setattr(Operation, "result", interrupted)
            with pytest.raises(interruption), session.sandbox(detach=True):
                raise AssertionError
        settled(session, provider)


def test_a_ctrl_c_during_a_start_leaves_nothing() -> None:
    code = """
import os, signal, threading
from tests.core.test_cancelled_starts import Gated, settled
from sandboxkit import Session, _operation
_operation.INTERRUPTED_SECONDS = 0.1  # nothing is undone before it is let to be
provider = Gated(at_end=True)
session = Session(provider, max_concurrency=1)

def interrupt():
    assert provider.entered.acquire(timeout=60)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    with session.sandbox():
        raise AssertionError
except KeyboardInterrupt:
    pass
assert provider.undone.acquire(timeout=60)
provider.open()
settled(session, provider)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


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
    provider = FakeProvider()
    with Session(provider) as owner, owner.sandbox() as sandbox:
        assert sandbox.id is not None
        reached = owner.from_id(sandbox.id).result(60)

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
        assert list(provider._boxes) == [sandbox.id]


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
    assert not provider._boxes
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
    assert not provider._boxes


def test_a_sandbox_of_a_closed_session_does_not_start() -> None:
    provider = FakeProvider()
    session = Session(provider)
    sandbox = session.sandbox()
    session.close().result(60)
    with pytest.raises(ConfigurationError, match="is closed"):
        sandbox.exec(["true"]).result(60)
    assert not provider._boxes


class HalfFull(FakeProvider):
    """Has room for one file, and fails as often as told to delete."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        if path.endswith("2"):
            raise SandboxError("no room")
        await super().write_file(sandbox_id, path, data, mode=mode)

    async def delete(self, sandbox_id: str) -> None:
        if self.failures:
            self.failures -= 1
            raise SandboxError("busy")
        await super().delete(sandbox_id)


FILES = {"/workspace/1": b"1", "/workspace/2": b"2"}


def test_files_that_fail_midway_leave_nothing() -> None:
    provider = HalfFull()
    with Session(provider, max_concurrency=1) as session:
        with pytest.raises(SandboxError, match="no room"):
            session.sandbox(files=FILES).start().result(60)
        settled(session, provider)


def test_stop_removes_the_remains_of_a_failed_start() -> None:
    provider = HalfFull(failures=1)
    with Session(provider, max_concurrency=1) as session:
        with pytest.raises(SandboxError, match="no room") as caught:
            session.sandbox(files=FILES).start().result(60)
        assert caught.value.__notes__ == ["and it could not be removed yet: busy"]
        assert len(provider._boxes) == 1
    assert not provider._boxes


def test_the_next_start_removes_the_remains_of_a_failed_one() -> None:
    provider = HalfFull(failures=1)
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox(files=FILES)
        for _ in range(2):
            with pytest.raises(SandboxError, match="no room"):
                sandbox.start().result(60)
        settled(session, provider)


def test_hundreds_of_starts_cancelled_at_every_moment_leave_nothing() -> None:
    class Slow(FakeProvider):
        async def create(self, spec: SandboxSpec) -> str:
            for _ in range(3):
                await asyncio.sleep(0)
            sandbox_id = await super().create(spec)
            try:
                for _ in range(3):
                    await asyncio.sleep(0)
            except BaseException:
                await self.delete(sandbox_id)
                raise
            return sandbox_id

    provider = Slow()
    with Session(provider, max_concurrency=3) as session:

        async def enter() -> None:
            async with session.sandbox():
                pass

        async def main() -> None:
            for turns in range(100):
                task: asyncio.Future[None] = asyncio.ensure_future(enter())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])

        asyncio.run(main())
        settled(session, provider)


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
    assert not provider._boxes


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
