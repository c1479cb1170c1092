"""Snapshots and forks in the core: bad input, partial failures, cancellation, and what a notebook shows."""

import queue
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError

import anyio
import pytest

from sandboxkit import (
    CapacityError,
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._states import State
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from sandboxkit.types import SandboxSpec, SnapshotInfo


async def stored(provider: FakeProvider) -> list[SnapshotInfo]:
    return [info async for info in provider.list_snapshots({})]


def left(provider: FakeProvider) -> tuple[int, int]:
    """How many sandboxes and snapshots there are."""
    return len(provider._boxes), len(Operation(stored(provider)).result(60))


def test_a_fork_of_a_sandbox_reached_by_id_or_stopped_is_refused() -> None:
    with Session(FakeProvider()) as session:
        with session.sandbox() as sandbox:
            assert sandbox.id is not None
            reached = session.from_id(sandbox.id).result(60)
            with pytest.raises(ConfigurationError, match="by its id"):
                reached.fork(1)
            reached.snapshot().result(60).delete().result(60)
        with pytest.raises(SandboxTerminatedError):
            sandbox.fork(1)
        with pytest.raises(SandboxTerminatedError):
            sandbox.snapshot()


class FillsUp(FakeProvider):
    """It has no room for every second sandbox that starts from a snapshot."""

    started = 0

    async def create(self, spec: SandboxSpec) -> str:
        self.started += spec.snapshot is not None
        if spec.snapshot is not None and self.started % 2 == 0:
            raise NoPermanentRoom("no room")
        return await super().create(spec)


class NoPermanentRoom(CapacityError):
    """A refusal that the core does not wait for."""

    retryable = False


def test_each_fork_succeeds_or_fails_by_itself() -> None:
    provider = FillsUp()
    with Session(provider) as session, session.sandbox() as sandbox:
        sandbox.write_file("/workspace/file", b"kept").result(60)
        forks = sandbox.fork(4).result(30)
        running = [each for each in forks if isinstance(each, Sandbox)]
        assert [type(each) for each in forks if each not in running] == [NoPermanentRoom] * 2
        for each in running:
            assert each.read_file("/workspace/file").result(60) == b"kept"
            each.stop().result(60)
        assert left(provider) == (1, 0)


def test_a_fork_counts_against_the_cap_and_bypasses_the_pool() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=3, pool=(0, 2)) as session:
        sandbox = session.sandbox().start().result(60)
        forks = sandbox.fork(2).result(60)
        more = session.sandbox()
        start = more.start()
        until(lambda: more._life.state is State.QUEUED, "it waits for room", 60)
        assert not start.done()
        for each in forks:
            assert isinstance(each, Sandbox)
        forks[0].stop().result(60)  # type: ignore[union-attr]  # it is a sandbox
        start.result(60)
        assert left(provider) == (3, 1)
    assert left(provider) == (0, 0)


class StartsSlowly(FakeProvider):
    """A start from a snapshot takes a minute."""

    async def create(self, spec: SandboxSpec) -> str:
        if spec.snapshot is not None:
            await anyio.sleep(60)
        return await super().create(spec)


def test_a_cancelled_fork_leaves_nothing() -> None:
    provider = StartsSlowly()
    with Session(provider) as session, session.sandbox() as sandbox:
        forking = sandbox.fork(3)
        until(lambda: left(provider) == (1, 1), "it has a snapshot", 60)
        forking.cancel()
        until(lambda: left(provider) == (1, 0), "nothing is left", 60)


def test_a_fork_that_succeeds_just_as_it_is_cancelled_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: queue.SimpleQueue[Operation[list[Sandbox | SandboxError]]] = queue.SimpleQueue()
    call = Lifecycle.call

    async def cancelled(
        life: Lifecycle, work: Callable[[str], Awaitable[list[SandboxError]]]
    ) -> list[SandboxError]:
        forks = await call(life, work)
        assert given.get().cancel()
        return forks

    provider = FakeProvider()
    with Session(provider) as session, session.sandbox() as sandbox:
        monkeypatch.setattr(Lifecycle, "call", cancelled)
        forking = sandbox.fork(3)
        given.put(forking)
        with pytest.raises(CancelledError):
            forking.result(60)
        until(lambda: left(provider) == (1, 0), "nothing is left", 60)


def test_a_notebook_shows_a_snapshot() -> None:
    with Session(FakeProvider()) as session, session.sandbox(tags="run:1") as sandbox:
        snapshot = sandbox.snapshot("a name").result(60)
        for thing in (snapshot, snapshot.info):
            text = thing._repr_mimebundle_()["text/plain"]
            assert snapshot.id in text
            assert "a name" in text
        snapshot.delete().result(60)
