"""Ready sandboxes: made before they are asked for, handed out once, and never left behind."""

import asyncio
import time

import pytest

from sandboxkit import Operation, Session, errors
from sandboxkit.provider import FirstCommand
from sandboxkit.testing.fake import FakeBox
from sandboxkit.types import SandboxSpec
from tests.pool.providers import DEADLINE, Counting, Gated, settled, until


def test_each_pooled_sandbox_serves_one_start_and_is_replaced() -> None:
    provider = Counting()
    with Session(provider, pool=3) as session:
        until(session, lambda stats: stats.ready == 3)
        made = set(provider.created)
        used = []
        for _ in range(2):
            with session.sandbox(files={"/workspace/mine": b"1"}) as sandbox:
                assert sandbox.id is not None
                used.append(sandbox.id)
                listed = sandbox.list_dir("/workspace").result(DEADLINE)
                assert [info.path for info in listed] == ["/workspace/mine"]
        assert len(set(used)) == 2
        assert used[0] in made
        assert not set(used) & provider.boxes.keys()
        stats = until(session, lambda stats: stats.ready == 3)
        assert (stats.hits, stats.misses, stats.made, stats.taken) == (2, 0, 5, 0)
        assert set(provider.created) - set(used) == provider.boxes.keys()
        settled(session, provider)
    assert len(provider.created) < 10


def test_a_second_start_with_other_options_is_pooled() -> None:
    provider = Counting()
    with Session(provider, pool=(1, 3)) as session:
        until(session, lambda stats: stats.ready == 3)
        for _ in range(2):
            session.run(["true"], env={"A": "1"}).result(DEADLINE)
            until(session, lambda stats: stats.taken == 0)
        until(session, lambda stats: stats.thrown_away != {} and stats.ready == 3)
        run = session.run(["sh", "-c", "echo $A"], env={"A": "1"})
        assert run.result(DEADLINE).stdout == "1\n"
        stats = session.pool_stats()
        assert (stats.hits, stats.misses) == (1, 2)
        assert stats.thrown_away == {"not wanted lately": 1}
        until(session, lambda stats: stats.ready == 3)
        assert [box.spec.env for box in provider.boxes.values()].count({}) >= 1
        settled(session, provider)


def test_idle_sandboxes_give_their_room_to_waiting_starts() -> None:
    provider = Counting()
    with Session(provider, pool=2, max_concurrency=2) as session:
        until(session, lambda stats: stats.ready == 2)
        with session.sandbox(env={"A": "1"}), session.sandbox(env={"A": "2"}):
            assert len(provider.boxes) == 2
            assert session.pool_stats().thrown_away == {"room for another": 2}
            waiting = session.sandbox()
            starting = waiting.start()
            with pytest.raises(TimeoutError):
                starting.result(0.1)
        starting.result(DEADLINE)
        waiting.stop().result(DEADLINE)
        until(session, lambda stats: stats.ready == 2)
        with Session(provider) as owner:
            session.adopt(owner.sandbox().start().result(DEADLINE)).result(DEADLINE)
        settled(session, provider)


@pytest.mark.parametrize("alike", [True, False])
def test_a_start_takes_a_sandbox_that_is_being_created_or_its_room(alike: bool) -> None:
    provider = Gated()
    with Session(provider, pool=1, max_concurrency=1) as session:
        assert provider.entered.acquire(timeout=DEADLINE)
        process = session.run(["true"], env={} if alike else {"A": "1"})
        if alike:
            until(session, lambda stats: stats.waiting == 1)
        else:
            assert provider.undone.acquire(timeout=DEADLINE)
            assert provider.entered.acquire(timeout=DEADLINE)
        provider.open()
        assert process.result(DEADLINE).returncode == 0
        stats = session.pool_stats()
        assert stats.thrown_away == ({} if alike else {"room for another": 1})
        assert stats.waits == alike
        settled(session, provider)


def test_dead_sandboxes_are_not_handed_out() -> None:
    provider = Counting()
    with Session(provider, pool=2) as session:
        until(session, lambda stats: stats.ready == 2)
        for box in tuple(provider.boxes.values()):
            Operation(box.delete()).result(DEADLINE)
        assert session.run(["true"]).result(DEADLINE).returncode == 0
        stats = until(session, lambda stats: stats.ready == 2)
        assert stats.thrown_away == {"dead": 2}
        assert "dead" in stats.recent[-1]
        settled(session, provider)


def test_a_lifetime_counts_from_the_hand_out() -> None:
    provider = Counting()
    with Session(provider, pool=1, lifetime=1.5) as session:
        until(session, lambda stats: stats.ready == 1)
        time.sleep(2.0)
        asked = time.time()
        with session.sandbox() as sandbox:
            assert sandbox.id == provider.created[0]
            ends = provider.boxes[provider.created[0]].ends
            assert ends is not None
            assert ends > asked + 0.75
            assert sandbox.exec(["true"]).result(DEADLINE).returncode == 0


def test_a_failed_background_creation_fails_no_start() -> None:
    wrong = errors.CapacityError("full, says the first")
    provider = Counting(wrong, errors.ProviderUnavailableError("down, says the second"))
    with Session(provider, pool=1) as session:
        stats = until(session, lambda stats: stats.recent != ())
        assert "could not be made (CapacityError: full, says the first)" in stats.recent[0]
        with pytest.raises(errors.ProviderUnavailableError, match="down, says the second"):
            session.run(["true"]).result(DEADLINE)
        assert session.run(["true"]).result(DEADLINE).returncode == 0
        until(session, lambda stats: stats.ready == 1)
        provider.errors.append(errors.CapacityError("full again"))
        with pytest.raises(errors.CapacityError, match="full again"):
            session.warm(env={"B": "1"}).result(DEADLINE)
        session.warm().result(DEADLINE)
        settled(session, provider)


def test_all_creations_wait_when_the_backend_asks_for_it() -> None:
    provider = Counting(errors.ProviderUnavailableError("too many", retry_after=0.5))
    with Session(provider) as session:
        with pytest.raises(errors.ProviderUnavailableError, match="too many"):
            session.run(["true"]).result(DEADLINE)
        for process in [session.run(["true"]) for _ in range(5)]:
            process.result(DEADLINE)
        first, *others = provider.attempts
        assert min(others) - first >= 0.5
        provider.errors += [
            errors.ProviderUnavailableError("too many", retry_after=0.3),
            errors.ProviderUnavailableError("too many today", retry_after=3600),
        ]
        with pytest.raises(errors.ProviderUnavailableError, match="too many"):
            session.run(["true"]).result(DEADLINE)
        # Those that wait when the pause gets long fail at once.
        raised = [each.exception(DEADLINE) for each in [session.run(["true"]) for _ in range(4)]]
        asked = [each for each in raised if "as the backend asked: too many today" in str(each)]
        assert len(asked) == 3
        assert isinstance(asked[0], errors.ProviderUnavailableError)
        assert asked[0].retry_after is not None
        assert len(provider.attempts) == 8


def test_a_sandbox_that_does_not_count_starts_at_the_cap_with_a_command_too() -> None:
    with Session(Counting(), pool=1, max_concurrency=1) as session, session.sandbox():
        apart = session.sandbox(counted=False, command=["sleep", "60"])
        apart.start().result(DEADLINE).stop().result(DEADLINE)


def test_closing_a_session_while_its_pool_fills_leaves_nothing() -> None:
    provider = Gated()
    session = Session(provider, pool=8).__enter__()
    for _ in range(8):
        assert provider.entered.acquire(timeout=DEADLINE)
    process = session.run(["true"])
    until(session, lambda stats: stats.waiting == 1)
    session.close().result(DEADLINE)
    with pytest.raises(errors.SandboxTerminatedError):
        process.result(DEADLINE)
    assert provider.boxes == {}
    assert session._sandboxes == set()
    with pytest.raises(errors.ConfigurationError, match="is closed"):
        session.warm()


def test_room_that_a_start_is_given_as_it_is_cancelled_is_taken_back() -> None:
    provider = Counting()
    with Session(provider, max_concurrency=1) as session:
        held, other = session.sandbox().start().result(DEADLINE), session.sandbox()

        async def main() -> None:
            taking = asyncio.create_task(session._pool.take(other._life))
            await asyncio.sleep(0)
            held._life.leave_room()  # to the one who waits, who is cancelled before it knows
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking

        Operation(main()).result(DEADLINE)
        held.stop().result(DEADLINE)
        settled(session, provider)


def test_a_sandbox_that_a_start_is_given_as_it_is_cancelled_is_taken_back() -> None:
    provider = Gated()
    with Session(provider, pool=1) as session:
        assert provider.entered.acquire(timeout=DEADLINE)

        async def main() -> None:
            taking = asyncio.create_task(session._pool.take(session.sandbox()._life))
            while not session.pool_stats().waiting:
                await asyncio.sleep(0)
            provider.gate.set()
            while session.pool_stats().waiting:
                await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking

        Operation(main()).result(DEADLINE)
        # Its replacement may exist already: then one of the two is deleted.
        stats = until(session, lambda stats: stats.ready == 1 and len(provider.boxes) == 1)
        assert stats.taken == 0
        settled(session, provider)


class Slow(Counting):
    """Takes three turns of the loop to create a sandbox."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().create(spec, first)


@pytest.mark.parametrize("most", [None, 1, 3])
def test_starts_cancelled_at_every_moment_leave_nothing(most: int | None) -> None:
    provider = Slow()
    with Session(provider, pool=most, max_concurrency=3) as session:

        async def enter(number: int) -> None:
            async with session.sandbox(env={"A": str(number % 2)} if number % 3 else {}):
                pass

        async def main() -> None:
            for turns in range(90):
                tasks = [asyncio.ensure_future(enter(turns + each)) for each in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                tasks[turns % 3].cancel()
                await asyncio.wait(tasks)
                assert len(provider.boxes) <= 3

        asyncio.run(main())
        settled(session, provider)
