"""Snapshots and forks in the core: bad input, partial failures, cancellation, and what a notebook shows."""

import errno
import itertools
import os
import queue
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from pathlib import Path

import anyio
import pytest

from sandboxkit import Operation, Sandbox, Session, errors
from sandboxkit._lifecycle import Lifecycle, State
from sandboxkit.provider import Box, FirstCommand
from sandboxkit.testing.conformance._base import until
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import SandboxSpec, SnapshotInfo


def left(provider: FakeProvider) -> tuple[int, int]:
    """How many sandboxes and snapshots there are."""

    async def stored() -> list[SnapshotInfo]:
        return [info async for info in provider.list_snapshots({})]

    return len(provider.boxes), len(Operation(stored()).result(60))


def test_a_fork_of_a_sandbox_reached_by_id_or_stopped_is_refused() -> None:
    with Session(FakeProvider()) as session:
        with session.sandbox() as sandbox:
            reached = session.from_id(str(sandbox.id)).result(60)
            with pytest.raises(errors.ConfigurationError, match="by its id"):
                reached.fork(1)
            snapshot = reached.snapshot("a name").result(60)
            for shown in (snapshot, snapshot.info):
                text = shown._repr_mimebundle_()["text/plain"]
                assert snapshot.id in text
                assert "a name" in text
            snapshot.delete().result(60)
        with pytest.raises(errors.SandboxTerminatedError):
            sandbox.fork(1)
        with pytest.raises(errors.SandboxTerminatedError):
            sandbox.snapshot()


class NoPermanentRoom(errors.CapacityError):
    """A refusal that the core does not wait for."""

    retryable = False


def test_each_fork_succeeds_or_fails_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    create, turns = FakeProvider.create, itertools.count()

    async def has_room_for_every_second(
        provider: FakeProvider, spec: SandboxSpec, first: FirstCommand | None = None
    ) -> FakeBox:
        if spec.snapshot is not None and next(turns) % 2:
            raise NoPermanentRoom("no room")
        return await create(provider, spec, first)

    monkeypatch.setattr(FakeProvider, "create", has_room_for_every_second)
    provider = FakeProvider()
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


def test_nothing_that_a_run_or_a_pool_has_left_keeps_a_snapshot() -> None:
    provider = FakeProvider()
    with Session(provider) as session, session.sandbox() as sandbox:
        taken = [sandbox.snapshot().result(60) for _ in range(2)]
    with Session(provider, pool=2, snapshot=taken[0]) as session:
        for _ in range(4):
            session.run(["true"], snapshot=taken[1]).result(60)
        until(lambda: session.pool_stats().ready == 2, "the pool keeps sandboxes", 60)
        taken[1].delete().result(60)
        with pytest.raises(errors.SnapshotInUseError):
            taken[0].delete().result(60)
    taken[0].delete().result(60)
    assert left(provider) == (0, 0)


def test_a_cancelled_fork_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = FakeBox.start

    async def starts_slowly(box: FakeBox, spec: SandboxSpec) -> None:
        await anyio.sleep(0 if spec.snapshot is None else 60)
        await start(box, spec)

    monkeypatch.setattr(FakeBox, "start", starts_slowly)
    provider = FakeProvider()
    with Session(provider) as session, session.sandbox() as sandbox:
        forking = sandbox.fork(3)
        until(lambda: left(provider) == (1, 1), "it has a snapshot", 60)
        forking.cancel()
        until(lambda: left(provider) == (1, 0), "nothing is left", 60)


def test_a_fork_cancelled_as_it_succeeds_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given: queue.SimpleQueue[Operation[list[Sandbox | errors.SandboxError]]] = queue.SimpleQueue()
    call = Lifecycle.call

    async def cancelled(
        life: Lifecycle, work: Callable[[Box], Awaitable[list[errors.SandboxError]]]
    ) -> list[errors.SandboxError]:
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


def test_a_snapshot_that_cannot_be_copied_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        before = sorted(tmp_path.iterdir())
        monkeypatch.setattr(FakeBox, "_copy", fail)
        with pytest.raises(OSError, match="No space"):
            sandbox.snapshot().result(60)
        assert sorted(tmp_path.iterdir()) == before
