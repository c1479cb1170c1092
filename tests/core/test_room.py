"""Room under a cap, of a session or of all processes of a user, is free once the sandbox that had it is gone."""

import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxkit import Operation, Process, Sandbox, Session, errors, wait
from sandboxkit._life import _reconciler
from sandboxkit._lifecycle import State
from sandboxkit._room import _waits
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from tests.pool.providers import Counting, Failing, Gated, Here, line_of, own_places

__all__ = ["own_places"]

SOON = 60.0
"""Seconds after which something is stuck, on a busy machine too. `tests.chaos` measures how soon room is back."""
TRUE = ["true"]


def vanish(session: Session, sandbox: Sandbox) -> None:
    """End a sandbox at its backend, with no call of the session's in flight."""
    assert sandbox.id is not None
    # The provider is used on the background loop alone.
    Operation(session._provider.box(sandbox.id).delete()).result(SOON)


@pytest.mark.parametrize("used", [False, True])
def test_a_sandbox_that_vanished_frees_its_room_whether_it_is_used_or_not(used: bool) -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        sandbox = session.sandbox().start().result(SOON)
        vanish(session, sandbox)
        if used:
            with pytest.raises(errors.SandboxNotFoundError):
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
        provider.failures = 0
        assert second.result(SOON).returncode == 0
        until(lambda: not provider.boxes, "both are gone", SOON)
        provider.failures = math.inf
        with pytest.raises(errors.SandboxError):
            session.sandbox(files={"/dev/null/no": b""}).start().result(SOON)
        assert provider.boxes
        provider.failures = 0
        until(lambda: not provider.boxes, "the remains of the failed start are gone", SOON)
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
            provider.failures = 0
        assert sandbox.exec(TRUE).result(SOON).returncode == 0
    assert not provider.boxes


def limited(session: Session, limit: str, seconds: float) -> Process:
    options: dict[str, Any] = {limit: seconds}  # Any: an option of a run
    return session.run(TRUE, **options)


@pytest.mark.parametrize("limit", ["start_timeout", "deadline"])
def test_a_timeout_without_room_names_who_holds_the_room(limit: str) -> None:
    with Session(FakeProvider(), max_concurrency=2) as session:
        held = [session.sandbox().start().result(SOON) for _ in range(2)]
        with pytest.raises(errors.NoRoomError) as raised:
            limited(session, limit, 0.5).result(SOON)
        text = str(raised.value)
        assert all(str(each.id) in text for each in held)
        assert f"{limit}=0.5 s" in text
        assert "max_concurrency=2" in text
        assert re.search(r"runs \(for \d+ s, made at test_room\.py:\d+\)", text)
        assert isinstance(raised.value, errors.CapacityError)
        assert raised.value.retryable
        held[0].stop().result(SOON)
        assert limited(session, limit, SOON).result(SOON).returncode == 0


@pytest.mark.parametrize("limit", ["start_timeout", "deadline"])
def test_a_creation_that_is_too_slow_is_undone(limit: str) -> None:
    provider = Gated()
    with Session(provider, max_concurrency=1) as session:
        with pytest.raises(
            errors.ProviderUnavailableError, match=rf"did not start within {limit}=0\.5 s"
        ):
            limited(session, limit, 0.5).result(SOON)
        assert provider.undone.acquire(timeout=SOON)
        assert not session._context.lives


def test_a_deadline_ends_the_command_and_is_not_its_timeout() -> None:
    with Session("local") as session, session.sandbox() as sandbox:
        process = sandbox.exec(["sleep", "61"], timeout=60, deadline=0.5)
        with pytest.raises(
            errors.ProviderUnavailableError, match=r"was killed at its deadline=0\.5 s"
        ):
            process.result(SOON)
        left = sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).result(SOON)
        assert "sleep 61" not in left.stdout


def test_a_backend_without_room_in_time_is_said_to_have_none() -> None:
    full = [errors.CapacityError("quota of 5 reached") for _ in range(20)]
    with Session(Counting(*full)) as session:
        with pytest.raises(errors.CapacityError):
            session.run(TRUE).result(SOON)
        with pytest.raises(errors.NoRoomError, match="quota of 5 reached"):
            session.run(TRUE, start_timeout=0.3).result(SOON)


def test_other_processes_and_other_sessions_are_named_with_their_places(own_places: Path) -> None:
    code = "s = Session(Here(), max_live=1); s.sandbox().start().result(60); say('has'); input()"
    with process(code) as child, Session(Here(), max_live=1) as session:
        assert line_of(child) == "has"
        with pytest.raises(errors.NoRoomError, match=rf"process {child.pid} \(.*python.*\) has 1"):
            session.run(TRUE, start_timeout=0.5).result(SOON)
        child.communicate("\n", timeout=SOON)
    with Session(Here(), max_live=1) as other, Session(Here(), max_live=1) as session:
        other.sandbox().start().result(SOON)
        of_this = r"max_live=1, of which this process has 1; this .* 0"
        with pytest.raises(errors.NoRoomError, match=of_this):
            session.run(TRUE, start_timeout=0.5).result(SOON)


def test_a_wait_says_what_it_waits_for_and_a_long_one_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_reconciler, "_WARN_SECONDS", 1.0)
    caplog.set_level(logging.WARNING, "sandboxkit")
    waits_for = r"\(never started\) waits for room \(for \d+ s, made at test_room\.py:\d+\)"
    with Session(FakeProvider(), max_concurrency=1) as session:
        held = session.sandbox().start().result(SOON)
        waiting = session.run(["echo", "hello"])
        until(lambda: any(each.name == "sandboxkit" for each in caplog.records), "it happens", SOON)
        with pytest.raises(TimeoutError):
            waiting.result(2)  # in which it would be logged again
        assert re.fullmatch(rf"<Process 'echo hello' pending: sandbox {waits_for}>", repr(waiting))
        report = session.explain()
        held.stop().result(SOON)
        waiting.result(SOON)
        assert "finished" in repr(waiting)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "sandboxkit"]
    assert "1 sandboxes wait for room" in line
    assert str(held.id) in line
    assert re.search(waits_for, report)
    assert re.search(rf"{held.id} runs", report)
    assert "max_concurrency=1" in report


def test_a_start_whose_time_is_over_before_it_begins_raises_the_typed_error() -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        sandbox = session.sandbox(start_timeout=1e-9)
        with pytest.raises(errors.SandboxError, match="start_timeout=1e-09 s"):
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
    provider.failures = 0
    session.close().result(SOON)
    assert not provider.boxes


def test_a_message_about_a_wait_is_removed_once_its_process_is_gone(
    own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = _waits.Wait("session")
    wait.publish("\udcff waits")
    (path,) = own_places.glob("waiting-*")
    foreign = path.with_name("waiting-foreign")
    foreign.write_text("of a process that was killed")
    assert list(_waits.published()) == [f"process {os.getpid()}: \\udcff waits"]
    assert not foreign.exists()
    wait.withdraw()
    assert not path.exists()
    foreign.touch()
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(foreign))
    wait.publish("waits")  # a folder that cannot be used stops no session
    wait.withdraw()


PROGRAMS = tomllib.loads(Path(__file__).with_name("room.toml").read_text())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, own_places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what one test kills is pytest's to remove
    return own_places


def process(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAMS["prelude"] + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def waits(session: Session) -> Operation[Sandbox]:
    """A start for which there is no room."""
    start = session.sandbox().start()
    assert wait([start], timeout=0.2) == ([], [start])
    return start


def end(child: "subprocess.Popen[str]") -> None:
    child.communicate("\n", timeout=60)
    assert child.returncode == 0


def test_the_cap_holds_for_all_sessions_of_a_process() -> None:
    with Session(Here(), max_live=2) as first, Session(Here(), max_live=2) as second:
        first.sandbox(counted=False).start().result(60)
        running = [first.sandbox().start().result(60), second.sandbox().start().result(60)]
        waiting = waits(second)
        running[0].stop().result(60)
        waiting.result(60)


def test_the_cap_holds_for_all_processes_and_starves_none() -> None:
    with process(PROGRAMS["hold"], 2, 1) as other, Session(Here(), max_live=2) as session:
        assert line_of(other) == "has"
        mine = session.sandbox().start().result(60)
        waiting = session.sandbox().start()
        with process(PROGRAMS["hold"], 2, 1) as third:
            assert wait([waiting], timeout=0.2) == ([], [waiting])
            end(other)
            mine.stop().result(60)
            assert line_of(third) == "has"
            waiting.result(60)
            end(third)


def test_a_process_that_is_killed_frees_its_places() -> None:
    with process(PROGRAMS["hold"], 3, 3) as other, Session(Here(), max_live=3) as session:
        assert [line_of(other) for _ in range(3)] == ["has"] * 3
        waiting = [session.sandbox().start() for _ in range(3)]
        assert wait(waiting, timeout=0.2)[0] == []
        other.send_signal(signal.SIGKILL)
        assert len(wait(waiting, num_returns=3, timeout=60)[0]) == 3


def test_a_forked_child_has_no_place_and_takes_none_away() -> None:
    with process(PROGRAMS["fork"]) as parent, Session(Here(), max_live=1) as session:
        assert line_of(parent) == "full"
        waits(session).cancel()
        assert parent.stdin is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert line_of(parent) == "mine"
        assert parent.wait(30) == 0


def test_a_detached_sandbox_counts_until_its_session_is_closed() -> None:
    provider = Here()
    with Session(provider, max_live=1) as session:
        detached = session.sandbox(detach=True).start().result(60)
        waits(session).cancel()
    with Session(provider, max_live=1) as session:
        session.adopt(detached).result(60)


def test_the_environment_variable_is_the_default_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_MAX_LIVE", "1")
    with Session(Here()) as session, session.sandbox():
        waits(session)
        with Session(Here(), max_live=2) as wider:
            wider.sandbox().start().result(60)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", " "])
def test_the_environment_variable_is_checked(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_MAX_LIVE", value)
    with pytest.raises(errors.ConfigurationError, match="SANDBOXKIT_MAX_LIVE="):
        Session(Here())


def test_hosted_sandboxes_have_no_machine_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_MAX_LIVE", "1")
    with Session(FakeProvider()) as session, session.sandbox():
        session.sandbox().start().result(60)


@pytest.mark.parametrize(("mode", "named"), [(0o755, "0700"), (0o700, "STATE_DIR")])
def test_a_folder_that_others_can_write_or_link_to_is_refused(
    folder: Path, tmp_path: Path, mode: int, named: str
) -> None:
    folder.mkdir(mode)
    (folder / "live-fake").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.ConfigurationError, match=named):
        Session(Here(), max_live=1)
