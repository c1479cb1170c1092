"""Sandboxes that serve one job after another, or one command many times: reset in between, or thrown away."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from sandboxkit import Session
from sandboxkit._room import _pool
from sandboxkit._room._pool import Preparation
from sandboxkit.errors import ConfigurationError, SandboxTerminatedError
from sandboxkit.integrations.rewards import Limits, Verdict, grading_session
from sandboxkit.integrations.rewards.programs import Program
from sandboxkit.testing.conformance._base import until as wait_until
from sandboxkit.types import CommandFile, CommandInput, CommandSeries, CommandSetup, Interpreter
from tests.data_here import beside
from tests.docker_here import require_docker
from tests.pool.providers import DEADLINE, Counting, Resetting, on_the_loop, settled, until
from tests.process_list import processes
from tests.reset.jobs import ENDS_CONNECTIONS

PROGRAMS = beside(__file__, "processes.toml")
JOB = ["sh", "-c", "ls; cat mine; echo 1 >theirs"]


def session_of(provider: Resetting | str, most: int = 1) -> Session:
    return Session(provider, pool=most, max_concurrency=most, reuse="reset", profile="strict")


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
    assert not provider.boxes


def test_the_pool_creates_as_many_sandboxes_as_jobs_run_at_a_time() -> None:
    provider = Resetting()
    with session_of(provider, 3) as session:
        jobs = [session.run(JOB, files={"/workspace/mine": str(each)}) for each in range(40)]
        outputs = [job.result(DEADLINE).stdout for job in jobs]
        assert outputs == [f"mine\n{each}" for each in range(40)]
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


def test_a_sandbox_is_replaced_after_its_jobs_or_a_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_JOBS", 3)
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
    code = "import sys, os; print(sys.argv, os.environ['A'], sys.stdin.read(), open('f').read())"
    with session_of(provider) as session:
        for number in range(3):
            result = session.run_python(
                code, args=["x", "y"], python="python3", preload=["json"], env={"A": str(number)},
                stdin=f"in{number}", files={"/workspace/f": "file"},
            ).result(DEADLINE)  # fmt: skip
            assert result.stdout == f"['-c', 'x', 'y'] {number} in{number} file\n"
            assert result.argv[:3] == ("python3", "-I", "-c")
        assert session.run_python("1/0", python="python3").result(DEADLINE).returncode == 1
        assert provider.programs == ["python3"] * 2
        with session.sandbox() as bare, pytest.raises(ConfigurationError, match="no interpreter"):
            bare.run_python("1")
        with pytest.raises(ConfigurationError, match="interpreter= cannot"):
            session.run_python("1", python="python3", interpreter=Interpreter())
        with pytest.raises(ConfigurationError, match="surrogate"):
            session.run_python("'\ud800'")
    with Session(Counting()) as session, pytest.raises(ConfigurationError, match="has no interp"):
        session.run_python("1").result(DEADLINE)


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_successive_jobs_do_not_see_each_other(provider: str) -> None:
    if provider == "docker":
        require_docker()
    tag = f"jobs:{os.getpid()}"
    with Session(
        provider, pool=2, max_concurrency=2, profile="strict", reuse="reset",
        interpreter=Interpreter(preload=("json",)), tags=tag,
    ) as session:  # fmt: skip
        session.warm().result(DEADLINE)
        first = {info.id for info in session.list(tag).result(DEADLINE)}
        assert len(first) == 2
        jobs = [
            session.run_python(PROGRAMS["shows"], args=[str(each)], files={"/workspace/mine": b""})
            for each in range(20)
        ]
        for number, job in enumerate(jobs):
            assert job.result(DEADLINE).stdout == f'[["mine"], false, ["{number}"]]\n'
        endless = session.run_python("import time; print(1, flush=True); time.sleep(1000)")
        assert next(iter(endless.stdout)) == "1\n"
        endless.cancel()
        stopped = session.sandbox().start().result(DEADLINE)
        running = stopped.exec(["sleep", "1000"])
        stopped.exec(["true"]).result(DEADLINE)
        stopped.stop().result(DEADLINE)
        with pytest.raises(SandboxTerminatedError, match="was stopped"):
            running.result(DEADLINE)
        assert session.run_python("print(2)").result(DEADLINE).stdout == "2\n"
        for _ in range(3):
            ended = session.run(["python3", "-c", ENDS_CONNECTIONS]).result(DEADLINE)
            assert ended.returncode == 0, ended.stderr
        stats = until(session, lambda stats: stats.ready == 2)
        assert stats.thrown_away == {}, stats.recent
        assert (stats.made, stats.misses) == (2, 0)
        assert {info.id for info in session.list(tag).result(DEADLINE)} == first


def inputs(count: int) -> tuple[CommandInput, ...]:
    return tuple(CommandInput(f"line{n}\n".encode(), (f"run{n}",)) for n in range(count))


@pytest.fixture(params=["local", "docker"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "docker":
        require_docker()
    with session_of(request.param) as session:
        yield session


def test_no_run_of_a_series_finds_anything_of_the_one_before(session: Session) -> None:
    runs = CommandSeries(inputs(20), seconds=DEADLINE, total_seconds=DEADLINE)
    setup = CommandSetup((CommandFile("/workspace/given", b"x", 0o444, reused=True),))
    for _ in range(2):
        with session.sandbox() as sandbox:
            series = sandbox.exec_each(["sh", "-c", PROGRAMS["leaves"]], runs, setup=setup)
            results = series.result(DEADLINE)
        heads = " .: given /dev/shm: /tmp: 0\n"
        assert [each.stdout for each in results] == [f"run{n} line{n}{heads}" for n in range(20)]
        assert {(each.returncode, each.stderr) for each in results} == {(3, "to stderr\n")}
        assert [each.argv[3:] for each in results] == [(f"run{n}",) for n in range(20)]
        assert all(0 < each.duration < DEADLINE for each in results)
    stats = until(session, lambda stats: stats.ready == 1)
    assert (stats.made, stats.thrown_away) == (1, {}), stats.recent


@pytest.mark.parametrize(
    ("argv", "seconds"),
    [
        (["sh", "-c", "[ $0 = run2 ] && sleep 100; true"], 1.0),
        (["sh", "-c", "[ $0 = run2 ] && (yes & yes); true"], DEADLINE),
        (["python3", "-c", PROGRAMS["uses_cpu"]], 1.0),
    ],
    ids=["elapsed time", "output", "CPU time of children"],
)
def test_a_run_that_exceeds_a_limit_ends_the_series_before_it(
    session: Session, argv: list[str], seconds: float
) -> None:
    with session.sandbox() as sandbox:
        for longer in (1, 5, 25):  # on a busy machine a short run may take that long, too
            runs = CommandSeries(inputs(5), min(DEADLINE, longer * seconds), total_seconds=DEADLINE)
            scaled = [each.replace("0.6", str(0.6 * longer)) for each in argv]
            results = sandbox.exec_each(scaled, runs).result(2 * DEADLINE)
            if len(results) == 2:
                break
        assert [each.returncode for each in results] == [0, 0]
    assert session.run(["ls"]).result(DEADLINE).stdout == ""


def test_a_series_keeps_its_time_and_a_killed_one_leaves_no_process(session: Session) -> None:
    sleep = f"sleep {os.getpid()}.5"

    def sleeps() -> bool:
        return any(each.args == sleep for each in processes())

    with session.sandbox() as sandbox:
        short = CommandSeries(inputs(500), seconds=DEADLINE, total_seconds=0.05)
        assert 1 <= len(sandbox.exec_each(["true"], short).result(DEADLINE)) < 500
        runs = CommandSeries(inputs(3), seconds=DEADLINE, total_seconds=DEADLINE)
        endless = sandbox.exec_each(["sh", "-c", sleep], runs)
        for runs_now in (True, False):
            wait_until(lambda: sleeps() == runs_now, f"it runs: {runs_now}", DEADLINE)  # noqa: B023
            endless.cancel()
        assert sandbox.exec(["true"]).result(DEADLINE).returncode == 0


def test_the_cases_of_a_submission_share_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each case would have a reset of its own, with the same outcomes."""
    # On a busy machine a run would not be short, and a series would end sooner.
    for name in ("_RUN", "_SERIES", "_SHORT", "_SHORT_ELAPSED"):
        monkeypatch.setattr(f"sandboxkit.integrations.rewards.programs._evaluate.{name}", DEADLINE)
    cases = [{"stdin": f"{n}\n", "stdout": f"{n}\n"} for n in range(28)]
    grader = Program("python", limits=Limits(timeout=DEADLINE))

    async def grade() -> tuple[Verdict, int]:
        async with grading_session(grader, "local", pool=1) as session:
            verdict = await grader.grade(session, "print(input())", {"cases": cases})
            return verdict, session.pool_stats().reset

    verdict, resets = asyncio.run(grade())
    assert (verdict.reward, len(verdict.parts)) == (1, 28), verdict
    assert resets <= 5


def test_a_series_is_refused_beside_another_call_and_the_sandbox_stays_usable() -> None:
    with session_of("local") as session:
        sandbox = session.sandbox()
        sleeping = sandbox.exec(["sleep", "100"])
        sandbox.exec(["true"]).result(DEADLINE)
        with pytest.raises(ConfigurationError, match="no other request may be open beside a ser"):
            sandbox.exec_each(["true"], CommandSeries(inputs(2), seconds=1)).result(DEADLINE)
        sleeping.cancel()
        assert len(sandbox.exec_each(["true"], CommandSeries(inputs(2), 1)).result(DEADLINE)) == 2


def test_a_series_is_refused_without_a_reset_and_with_wrong_inputs() -> None:
    runs = CommandSeries(inputs(2), seconds=1)
    with Session("local", pool=1) as session:
        with pytest.raises(ConfigurationError, match="make it with reuse='reset'"):
            session.sandbox().exec_each(["true"], runs)
        sandbox = session.sandbox(reuse="reset", profile="strict")
        with pytest.raises(ConfigurationError, match=r"series\.inputs"):
            sandbox.exec_each(["true"], CommandSeries(("line",), seconds=1))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"series\.seconds"):
            sandbox.exec_each(["true"], CommandSeries(inputs(2), seconds=1e9))
