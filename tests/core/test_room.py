"""Room under a cap is free once the sandbox that had it is gone, however it went and whoever saw it."""

import logging
import os
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from sandboxkit import (
    CapacityError,
    NoRoomError,
    Operation,
    Process,
    Sandbox,
    Session,
    _machine_semaphore,
    _reconciler,
    _waits,
)
from sandboxkit._states import State
from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotFoundError
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from tests.core.test_max_live import Here, line_of, process
from tests.pool.providers import Counting, Gated

SOON = 60.0
"""Seconds after which something is stuck, on a busy machine too. `tests.chaos` measures how soon room is back."""
TRUE = ["true"]


class Failing(FakeProvider):
    """Cannot delete anything until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.attempts = 0

    async def delete(self, sandbox_id: str) -> None:
        self.attempts += 1
        if self.broken:
            raise ProviderUnavailableError("the connection was reset")
        await super().delete(sandbox_id)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    yield
    _machine_semaphore._forget()


def vanish(session: Session, sandbox: Sandbox) -> None:
    """End a sandbox at its backend, with no call of the session's in flight."""
    assert sandbox.id is not None
    # The provider is used on the background loop alone.
    Operation(session._provider.delete(sandbox.id)).result(SOON)


@pytest.mark.parametrize("used", [False, True])
def test_a_sandbox_that_vanished_frees_its_room_whether_it_is_used_or_not(used: bool) -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        sandbox = session.sandbox().start().result(SOON)
        vanish(session, sandbox)
        if used:
            with pytest.raises(SandboxNotFoundError):
                sandbox.exec(TRUE).result(SOON)
            until(lambda: "has ended by itself" in repr(sandbox), "it is noticed", SOON)
        assert session.run(TRUE).result(SOON).returncode == 0


def test_a_live_sandbox_keeps_its_room() -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        held = session.sandbox().start().result(SOON)
        waiting = session.run(TRUE)
        with pytest.raises(TimeoutError):
            waiting.result(5)
        held.stop().result(SOON)
        assert waiting.result(SOON).returncode == 0


def test_a_deletion_that_failed_is_repeated_until_it_succeeds() -> None:
    provider = Failing()
    with Session(provider, max_concurrency=1) as session:
        assert session.run(TRUE).result(SOON).returncode == 0
        second = session.run(TRUE)
        until(lambda: provider.attempts > 2, "it is repeated", SOON)
        assert not second.done()
        provider.broken = False
        assert second.result(SOON).returncode == 0
        until(lambda: not provider._boxes, "both are gone", SOON)
        provider.broken = True
        with pytest.raises(SandboxError):
            session.sandbox(files={"/dev/null/no": b""}).start().result(SOON)
        assert provider._boxes
        provider.broken = False
        until(lambda: not provider._boxes, "the remains of the failed start are gone", SOON)
        assert session.run(TRUE).result(SOON).returncode == 0


def test_remains_without_room_may_be_started_again_and_given_up() -> None:
    provider = Failing()
    with Session(provider, max_concurrency=1) as session:
        sandbox = session.sandbox().start().result(SOON)
        life = sandbox._life

        async def end_and_lose() -> None:
            session._reconciler.close()  # it would remove what is left between the steps
            life.ended()
            life.lost()

        Operation(end_and_lose()).result(SOON)
        until(lambda: life.state is State.LEFT_OVER, "it happens", SOON)
        with session.sandbox() as holder:
            holder.start().result(SOON)
            again = sandbox.start()
            until(lambda: life.state is State.QUEUED, "it happens", SOON)
            again.cancel()
            until(lambda: life.state is State.LEFT_OVER, "it happens", SOON)
            provider.broken = False
        assert sandbox.exec(TRUE).result(SOON).returncode == 0
    assert not provider._boxes


def test_another_process_gets_the_place_of_one_that_vanished(state: None) -> None:
    with Session(Here(), max_live=1) as session:
        sandbox = session.sandbox().start().result(SOON)
        code = "with Session(Here(), max_live=1) as s: print(s.run(['true']).result(60).returncode)"
        with process(code) as child:
            time.sleep(2)
            assert child.poll() is None
            vanish(session, sandbox)
            assert child.communicate(timeout=SOON + 5)[0].strip() == "0"


def limited(session: Session, limit: str, seconds: float) -> Process:
    """Run a command of which one part has so long."""
    if limit == "deadline":
        return session.run(TRUE, deadline=seconds)
    return session.run(TRUE, start_timeout=seconds)


@pytest.mark.parametrize("limit", ["start_timeout", "deadline"])
def test_a_timeout_without_room_names_who_holds_the_room(limit: str) -> None:
    with Session(FakeProvider(), max_concurrency=2) as session:
        held = [session.sandbox().start().result(SOON) for _ in range(2)]
        with pytest.raises(NoRoomError) as raised:
            limited(session, limit, 0.5).result(SOON)
        text = str(raised.value)
        assert all(str(each.id) in text for each in held)
        assert f"{limit}=0.5 s" in text
        assert "max_concurrency=2" in text
        assert re.search(r"runs \(for \d+ s, made at test_room\.py:\d+\)", text)
        assert isinstance(raised.value, CapacityError)
        assert raised.value.retryable
        held[0].stop().result(SOON)
        assert limited(session, limit, SOON).result(SOON).returncode == 0


@pytest.mark.parametrize("limit", ["start_timeout", "deadline"])
def test_a_creation_that_is_too_slow_is_undone(limit: str) -> None:
    provider = Gated()
    with Session(provider, max_concurrency=1) as session:
        with pytest.raises(ProviderUnavailableError, match=rf"did not start within {limit}=0\.5 s"):
            limited(session, limit, 0.5).result(SOON)
        assert provider.undone.acquire(timeout=SOON)
        assert not session._context.lives


def test_a_deadline_ends_the_command_and_is_not_its_timeout() -> None:
    with Session("local") as session, session.sandbox() as sandbox:
        process = sandbox.exec(["sleep", "61"], timeout=60, deadline=0.5)
        with pytest.raises(ProviderUnavailableError, match=r"was killed at its deadline=0\.5 s"):
            process.result(SOON)
        left = sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).result(SOON)
        assert "sleep 61" not in left.stdout


def test_a_backend_without_room_in_time_is_said_to_have_none() -> None:
    full = [CapacityError("quota of 5 reached") for _ in range(20)]
    with Session(Counting(*full)) as session:
        with pytest.raises(CapacityError):
            session.run(TRUE).result(SOON)
        with pytest.raises(NoRoomError, match="quota of 5 reached"):
            session.run(TRUE, start_timeout=0.3).result(SOON)


def test_other_processes_and_other_sessions_are_named_with_their_places(state: None) -> None:
    code = "s = Session(Here(), max_live=1); s.sandbox().start().result(60); say('has'); input()"
    with process(code) as child, Session(Here(), max_live=1) as session:
        assert line_of(child) == "has"
        with pytest.raises(NoRoomError, match=rf"process {child.pid} \(.*python.*\) has 1"):
            session.run(TRUE, start_timeout=0.5).result(SOON)
        child.communicate("\n", timeout=SOON)
    with Session(Here(), max_live=1) as other, Session(Here(), max_live=1) as session:
        other.sandbox().start().result(SOON)
        of_this = r"max_live=1, of which this process has 1; this .* 0"
        with pytest.raises(NoRoomError, match=of_this):
            session.run(TRUE, start_timeout=0.5).result(SOON)


def test_a_long_wait_for_room_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_reconciler, "_WARN_SECONDS", 1.0)
    caplog.set_level(logging.WARNING, "sandboxkit")
    with Session(FakeProvider(), max_concurrency=1) as session:
        held = session.sandbox().start().result(SOON)
        waiting = session.sandbox().start()
        until(lambda: any(each.name == "sandboxkit" for each in caplog.records), "it happens", SOON)
        with pytest.raises(TimeoutError):
            waiting.result(2)  # in which it would be logged again
        report = session.explain()
        held.stop().result(SOON)
        waiting.result(SOON)
    lines = [each.getMessage() for each in caplog.records if each.name == "sandboxkit"]
    assert len(lines) == 1
    assert "1 sandboxes wait for room" in lines[0]
    assert str(held.id) in lines[0]
    assert re.search(
        r"\(never started\) waits for room \(for \d+ s, made at test_room\.py:\d+\)", report
    )
    assert re.search(rf"{held.id} runs", report)
    assert "max_concurrency=1" in report


def test_a_start_whose_time_is_over_before_it_begins_raises_the_typed_error() -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        sandbox = session.sandbox(start_timeout=1e-9)
        with pytest.raises(SandboxError, match="start_timeout=1e-09 s"):
            sandbox.start().result(SOON)
        assert not session._context.lives
        assert session.run(TRUE).result(SOON).returncode == 0


def test_a_moving_queue_logs_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_reconciler, "_WARN_SECONDS", 1.0)
    caplog.set_level(logging.WARNING, "sandboxkit")
    with Session(FakeProvider(), max_concurrency=2) as session:
        moved = [time.monotonic()]
        runs = [session.run(["sleep", "0.3"]) for _ in range(20)]
        for each in runs:
            each.add_done_callback(lambda _: moved.append(time.monotonic()))
        assert all(each.result(60).returncode == 0 for each in runs)
    # On a busy machine the queue may have stood still for a moment.
    stood_still = max(later - sooner for sooner, later in pairwise(moved)) > 0.8
    assert stood_still or not [each for each in caplog.records if each.name == "sandboxkit"]


def test_a_pending_call_says_what_it_waits_for() -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        held = session.sandbox().start().result(SOON)
        waiting = session.run(["echo", "hello"])
        until(lambda: "waits for room" in repr(waiting), "it happens", SOON)
        assert re.fullmatch(
            r"<Process 'echo hello' pending: sandbox \(never started\) waits for room "
            r"\(for \d+ s, made at test_room\.py:\d+\)>",
            repr(waiting),
        )
        held.stop().result(SOON)
        waiting.result(SOON)
        assert "finished" in repr(waiting)


def test_after_close_the_reconciler_deletes_nothing() -> None:
    provider = Failing()
    session = Session(provider)
    session.sandbox().start().result(SOON)
    # It has looked, and found nothing to do.
    until(lambda: session._reconciler._timer is None, "it happens", SOON)
    with pytest.raises(ExceptionGroup, match="could not be stopped"):
        session.close().result(SOON)
    attempts = provider.attempts
    with pytest.raises(TimeoutError):
        Operation(anyio.sleep(60)).result(3 * _reconciler._TICK + _reconciler._FIRST_PAUSE)
    assert provider.attempts == attempts
    provider.broken = False
    session.close().result(SOON)
    assert not provider._boxes


def test_a_message_about_a_wait_is_removed_once_it_is_stale_or_its_process_is_gone(
    state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = _waits.Wait("session")
    wait.publish("\udcff waits")
    (path,) = (tmp_path / "state").glob("waiting-*")
    assert list(_waits.published()) == [f"process {os.getpid()}: \\udcff waits"]
    os.utime(path, (0, 0))
    foreign = path.with_name("waiting-foreign")
    foreign.write_text("named by somebody else")
    assert list(_waits.published()) == ["named by somebody else"]
    assert not path.exists()
    wait.withdraw()
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(foreign))
    wait.publish("waits")  # a folder that cannot be used stops no session
    wait.withdraw()
