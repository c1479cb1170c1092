"""Sandboxes that serve one job after another: reset in between, or thrown away."""

import pytest

from sandboxkit import (
    ConfigurationError,
    Interpreter,
    SandboxTerminatedError,
    Session,
    _balance,
    _pool,
)
from sandboxkit._balance import Preparation
from tests.pool.providers import DEADLINE, Counting, Resetting, on_the_loop, settled, until

JOB = ["sh", "-c", "ls; cat mine; echo 1 >theirs"]


def session_of(provider: Resetting, most: int = 1) -> Session:
    return Session(
        provider, pool=most, max_concurrency=most, reuse="reset", profile="strict", lifetime=60
    )


def test_each_job_gets_the_sandbox_in_its_initial_state() -> None:
    provider = Resetting()
    with session_of(provider) as session:
        for number in range(5):
            files = {"/workspace/mine": f"{number}\n"}
            result = session.run(JOB, files=files).result(DEADLINE)
            assert result.stdout == f"mine\n{number}\n"
        stats = until(session, lambda stats: stats.ready == 1)
        assert (stats.made, stats.reset, stats.misses, stats.thrown_away) == (1, 5, 0, {})
        assert len(provider.created) == 1
        assert provider.resets == 5
    assert not provider._boxes


def test_the_pool_creates_as_many_sandboxes_as_jobs_run_at_a_time() -> None:
    provider = Resetting()
    with session_of(provider, 3) as session:
        jobs = [session.run(JOB, files={"/workspace/mine": str(each)}) for each in range(40)]
        assert [job.result(DEADLINE).stdout for job in jobs] == [
            f"mine\n{each}" for each in range(40)
        ]
        assert len(provider.created) == 3
        until(session, lambda stats: stats.ready == 3)
        settled(session, provider)


def test_a_stopped_sandbox_object_never_reaches_its_successor() -> None:
    provider = Resetting()
    with session_of(provider) as session:
        first = session.sandbox()
        sleeping = first.exec(["sleep", "1000"])
        first.start().result(DEADLINE)
        waiting = first.exec(["cat"], stdin=True)
        first.stop().result(DEADLINE)
        for process in (sleeping, waiting):
            with pytest.raises(SandboxTerminatedError, match="was stopped"):
                process.result(DEADLINE)
        with session.sandbox() as second:
            assert second.id == first.id
            with pytest.raises(SandboxTerminatedError, match="was stopped"):
                first.write_file("/workspace/x", b"")
            first.stop().result(DEADLINE)
            assert second.exec(["ls", "/workspace"]).result(DEADLINE).stdout == ""
            with pytest.raises(ConfigurationError, match="cannot move to another session"):
                session.adopt(second)


@pytest.mark.parametrize(
    ("file", "reason", "expected"),
    [("dirt", "not clean", "/workspace/dirt"), ("slow", "no reset", "TimeoutError")],
)
def test_a_sandbox_not_proven_clean_is_replaced(
    file: str, reason: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file == "slow":
        monkeypatch.setitem(_pool._SECONDS, Preparation.RESET, 0.2)
    provider = Resetting()
    with session_of(provider) as session:
        session.run(["touch", file]).result(DEADLINE)
        until(session, lambda stats: stats.thrown_away != {})
        monkeypatch.setitem(_pool._SECONDS, Preparation.RESET, DEADLINE)
        assert session.run(["ls"]).result(DEADLINE).stdout == ""
        stats = until(session, lambda stats: stats.ready == 1)
        assert stats.thrown_away == {reason: 1}
        assert expected in stats.recent[-1]
        assert len(provider.created) == 2


def test_a_start_that_waits_for_a_failed_reset_gets_another_sandbox() -> None:
    provider = Resetting()
    with session_of(provider) as session:
        first = session.sandbox(counted=False)
        first.exec(["touch", "slow"]).result(DEADLINE)
        first.stop().result(DEADLINE)
        assert session.pool_stats().resetting == 1
        second = session.sandbox(counted=False)
        starting = second.start()
        until(session, lambda stats: stats.waiting == 1)
        on_the_loop(provider.fail.set)
        starting.result(DEADLINE)
        assert second.id != first.id
        second.stop().result(DEADLINE)


def test_a_sandbox_is_replaced_after_its_job_limit_and_its_lifetime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_balance, "_JOBS", 3)
    provider = Resetting()
    with session_of(provider) as session:
        for _ in range(4):
            session.run(["true"]).result(DEADLINE)
        assert until(session, lambda stats: stats.ready == 1).thrown_away == {"3 jobs": 1}
        with session.sandbox() as sandbox:
            sandbox.renew(1000).result(DEADLINE)
        stats = until(session, lambda stats: stats.ready == 1)
        assert stats.thrown_away == {"3 jobs": 1, "renewed by its user": 1}


def test_the_session_interpreter_takes_one_sandbox() -> None:
    provider = Resetting()
    code = (
        "import sys, os; print(sys.argv, os.environ.get('A'), sys.stdin.read(), open('f').read())"
    )
    with session_of(provider) as session:
        for number in range(3):
            result = session.run_python(
                code,
                args=["x", "y"],
                python="python3",
                preload=["json"],
                env={"A": str(number)},
                stdin=f"in{number}",
                files={"/workspace/f": "file"},
            ).result(DEADLINE)
            assert result.stdout == f"['-c', 'x', 'y'] {number} in{number} file\n"
            assert result.argv[:3] == ("python3", "-I", "-c")
        assert session.run_python("1/0", python="python3").result(DEADLINE).returncode == 1
        assert len(provider.interpreters) == 2
        assert {each.program for each in provider.interpreters.values()} == {"python3"}
        with session.sandbox() as bare, pytest.raises(ConfigurationError, match="no interpreter"):
            bare.run_python("1")
        with pytest.raises(ConfigurationError, match="interpreter= cannot"):
            session.run_python("1", python="python3", interpreter=Interpreter())
        with pytest.raises(ConfigurationError, match="surrogate"):
            session.run_python("'\ud800'")
    with Session(Counting()) as session, pytest.raises(ConfigurationError, match="has no interp"):
        session.run_python("1").result(DEADLINE)
