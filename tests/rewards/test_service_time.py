"""Time behind others is nobody's, slowness is its owner's, and an unproven end is repeated alone."""

import asyncio
import gc
import logging
import os
import signal
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxkit import Sandbox, SandboxTerminatedError, Session
from sandboxkit.integrations._service import DeadlineError, service_time
from sandboxkit.integrations.rewards import (
    HostCompare,
    Limits,
    Outcome,
    Verdict,
    _judge,
    grade_in_fresh,
    grading_session,
)
from sandboxkit.integrations.rewards._run import retried
from sandboxkit.providers import _agent
from sandboxkit.testing import FakeProvider
from tests.control_groups import processes_of

pytestmark = [pytest.mark.timeout(280), pytest.mark.anyio]

RIGHT = "def f(x): return x + 1"
SLEEPER = "import time\ndef f(x): time.sleep(600)"
TASK = {"entry_point": "f", "cases": [{"args": [1], "expected": 2}]}


async def grade_batch(
    codes: Iterable[str], limits: Limits, task: Mapping[str, object], pool: int
) -> list[Verdict]:
    grader = HostCompare(limits)
    async with grading_session(grader, "local", pool=pool) as session:
        await session.warm()
        return await asyncio.gather(*[grader.grade(session, code, task) for code in codes])


async def test_the_duration_of_a_batch_of_sleepers_is_known_beforehand() -> None:
    limits = Limits(timeout=0.5, wall=1.0)
    begun = time.monotonic()
    verdicts = await grade_batch([SLEEPER] * 12, limits, TASK, 2)
    took = time.monotonic() - begun
    assert {each.outcome for each in verdicts} == {Outcome.TIMEOUT}
    assert 6 * limits.longest < took < limits.longest_batch(12, 2)


async def test_a_submission_that_waits_for_a_fresh_sandbox_is_not_masked() -> None:
    async def hold(sandbox: Sandbox) -> None:
        async with sandbox:
            await sandbox.exec(["sleep", "1"])

    async def grade(sandbox: Sandbox) -> Verdict:
        return Verdict(Outcome.PASSED, 1.0)

    async with Session(FakeProvider(), max_concurrency=1) as session:
        agent = session.sandbox(files={"/workspace/a": b""})
        await agent.start()
        holding = [asyncio.ensure_future(hold(session.sandbox())) for _ in range(8)]
        await asyncio.sleep(0)
        verdict = await grade_in_fresh(agent, ["/workspace/a"], session.sandbox, grade, deadline=6)
        await asyncio.gather(*holding)
    assert verdict.outcome is Outcome.PASSED


async def test_a_stalled_queue_ends() -> None:
    async with Session(FakeProvider(), max_concurrency=1) as session, session.sandbox():
        verdict = await HostCompare(Limits(timeout=0.2, deadline=0.5)).grade(session, RIGHT, TASK)
    assert verdict.detail == "no answer within deadline=0.5 s"


async def test_service_time_counts_and_waiting_does_not() -> None:
    waiting: float | None = 0.0

    async def run() -> None:
        nonlocal waiting
        async with service_time(0.4, lambda: waiting):
            await asyncio.sleep(1.0)
            waiting = None
            await asyncio.Event().wait()

    begun = time.monotonic()
    with pytest.raises(DeadlineError, match=r"deadline=0\.4 s"):
        await run()
    assert time.monotonic() - begun > 1.3


async def test_a_foreign_timeout_is_not_taken_for_the_deadline() -> None:
    with pytest.raises(TimeoutError, match="theirs"):
        async with service_time(60.0, lambda: None):
            raise TimeoutError("theirs")


async def test_slowness_in_the_judge_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_judge, "_SECONDS", 1)
    codes = ["def f(): return list(range(30_000))", "def f(): return [1, 2, 3]"]
    task = {"test_list": ["x = f()\nassert [n for n in x if x.count(n) == 1] == [1, 2, 3]"]}
    verdicts = await grade_batch(codes, Limits(timeout=1.0, wall=3.0, deadline=120), task, 1)
    assert [each.outcome for each in verdicts] == [Outcome.TIMEOUT, Outcome.PASSED], verdicts


LATER = "import time\ndef f(x):\n    time.sleep(1.5)\n    return x + 1"
# The interpreter's command line has its program, which begins with this file.
INTERPRETER = Path(_agent.__path__[0], "interpreter.py").read_bytes().splitlines()[0]


def jobs(sandbox_id: str) -> list[tuple[int, int]]:
    """The process of each job that was forked from an interpreter, and that interpreter's."""
    found = []
    for pid in processes_of(sandbox_id):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        if all(INTERPRETER in Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, parent)):
            found.append((pid, parent))
    return found


async def graded_under_fire(which: int, task: Mapping[str, object]) -> tuple[Verdict, int]:
    """Grade a right submission; its job (0) or the interpreter (1) is killed wherever it is forked."""
    tag, grader, killed = f"service-time:{uuid.uuid4().hex}", HostCompare(Limits(timeout=5)), 0
    async with grading_session(grader, "local", pool=2, tags=tag) as session:
        await session.warm()
        grading = asyncio.ensure_future(grader.grade(session, LATER, task))
        while not grading.done():
            for info in await session.list(tags=tag):
                with suppress(AssertionError, OSError):  # it may end meanwhile
                    for pids in jobs(info.id):
                        os.kill(pids[which], signal.SIGKILL)
                        killed += 1
            await asyncio.wait([grading], timeout=0.1)
        return grading.result(), killed


@pytest.mark.parametrize("which", [0, 1], ids=["the job", "the interpreter"])
@pytest.mark.parametrize(
    "task", [TASK, {"tests": "from solution import f\ndef test_f():\n    assert f(1) == 2\n"}]
)
async def test_a_submission_killed_from_outside_is_graded_again_alone(
    which: int, task: Mapping[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """No error of the killed process is left that nobody retrieved."""
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        verdict, killed = await graded_under_fire(which, task)
        gc.collect()
    assert verdict.outcome is Outcome.PASSED, verdict
    assert killed
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("again", [True, False])
async def test_an_unproven_end_is_repeated_once_in_a_fresh_sandbox(again: bool) -> None:
    seen = list[tuple[bool, str]]()

    async def attempt(sandbox: Sandbox, alone: bool) -> Verdict:
        seen.append((alone, sandbox.spec.reuse))
        if alone and not again:
            return Verdict(Outcome.PASSED, 1.0)
        raise SandboxTerminatedError("the sandbox's interpreter has ended", by_command=True)

    async with Session("local", pool=1, profile="strict", reuse="reset") as session:
        verdict = await retried(session, Limits(retries=0), attempt)
    assert seen == [(False, "reset"), (True, "never")]
    assert verdict.outcome is (Outcome.FAILED if again else Outcome.PASSED)
    assert verdict.attributable_to == "policy"


async def test_out_of_memory_is_proven_at_once() -> None:
    tried = 0

    async def attempt(sandbox: Sandbox, alone: bool) -> Verdict:
        nonlocal tried
        tried += 1
        raise SandboxTerminatedError("out of memory", out_of_memory=True)

    async with Session(FakeProvider()) as session:
        assert (await retried(session, Limits(), attempt)).outcome is Outcome.OOM
    assert tried == 1
