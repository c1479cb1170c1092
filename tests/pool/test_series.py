"""`Sandbox.exec_each`: one command, many inputs, and a reset between two runs."""

import asyncio
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import Limits, Verdict, grading_session
from sandboxkit.integrations.rewards.programs import Program
from sandboxkit.testing.conformance._base import until as wait_until
from sandboxkit.types import CommandFile, CommandInput, CommandSeries, CommandSetup
from tests.docker_here import require_docker
from tests.pool.providers import until
from tests.process_list import processes

DEADLINE = 60.0
PROGRAMS = tomllib.loads(Path(__file__).with_name("series.toml").read_text())


def inputs(count: int) -> tuple[CommandInput, ...]:
    return tuple(CommandInput(f"line{n}\n".encode(), (f"run{n}",)) for n in range(count))


@pytest.fixture(params=["local", "docker"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "docker":
        require_docker()
    with Session(
        request.param, pool=1, max_concurrency=1, profile="strict", reuse="reset"
    ) as session:
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


def test_a_series_starts_no_run_after_its_time_and_a_killed_one_leaves_no_process(
    session: Session,
) -> None:
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
    # On a busy machine a series would end sooner.
    monkeypatch.setattr("sandboxkit.integrations.rewards.programs._series._RUN", DEADLINE)
    monkeypatch.setattr("sandboxkit.integrations.rewards.programs._series._SERIES", DEADLINE)
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
    with Session("local", pool=1, profile="strict", reuse="reset") as session:
        sandbox = session.sandbox()
        sleeping = sandbox.exec(["sleep", "100"])
        sandbox.exec(["true"]).result(DEADLINE)
        with pytest.raises(
            ConfigurationError, match="no other request may be open beside a series"
        ):
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
