"""A program's zero is its own doing: what others take of the machine never is, nor is silence."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from sandboxkit import ProcessResult, Sandbox, Session, Usage
from sandboxkit.errors import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations.rewards import Limits, Outcome, Verdict
from sandboxkit.integrations.rewards._programs import SandboxProgram, limited
from sandboxkit.integrations.rewards._run import retried, run, watched
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.fake import FakeBox
from tests.control_groups import processes_of
from tests.rewards.corpus import DATA, read

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]
HONEST = "import time\nwhile time.process_time() < 2: pass\nprint('done')"
"""Needs two seconds of processor time, whatever else happens."""
GIVEN = read(DATA / "feigned_starvation.toml")
FEIGNED = GIVEN["feigned"]


async def grade_together(
    provider: str, *programs: tuple[str, Limits], cpus: float | None = None
) -> list[ProcessResult | Verdict]:
    async with Session(provider, cpus=cpus) as session:
        runs = [run(session, SandboxProgram(("python3", "-c", c)), limit) for c, limit in programs]
        return await asyncio.gather(*runs)


def is_timeout(answer: ProcessResult | Verdict) -> bool:
    return (
        isinstance(answer, Verdict)
        and answer.outcome is Outcome.TIMEOUT
        and answer.attributable_to == "policy"
    )


@pytest.mark.alone
async def test_submissions_with_busy_loops_do_not_slow_their_neighbour() -> None:
    spinners = [(GIVEN["spinners"], Limits(timeout=3, deadline=250))] * 3
    *theirs, honest = await grade_together(
        "local", *spinners, (HONEST, Limits(timeout=4, deadline=250))
    )
    assert isinstance(honest, ProcessResult), honest
    assert honest.stdout == "done\n"
    assert all(map(is_timeout, theirs)), theirs


async def test_programs_that_sleep_loop_or_fork_are_out_of_time(provider: str) -> None:
    """CPU time includes that of processes that have ended."""
    loop = "while True: pass"
    started = time.monotonic()
    verdicts = await grade_together(
        provider,
        ("import time\ntime.sleep(60)", Limits(timeout=1, wall=3)),
        (loop, Limits(timeout=1)),
        (f"import signal; signal.signal(24, signal.SIG_IGN)\n{loop}", Limits(timeout=1)),
        (GIVEN["forks"], Limits(timeout=2)),
    )
    assert all(map(is_timeout, verdicts)), verdicts
    assert time.monotonic() - started < 50


@pytest.mark.alone
@pytest.mark.parametrize(
    ("provider", "how"),
    [*(("local", how) for how in FEIGNED), ("docker", next(iter(FEIGNED)))],
    indirect=["provider"],
)
async def test_starvation_cannot_be_feigned(provider: str, how: str) -> None:
    limits = Limits(timeout=2, wall=4, deadline=100)
    feigned, _ = await grade_together(
        provider, (FEIGNED[how], limits), ("while True: pass", limits)
    )
    assert is_timeout(feigned), feigned


async def test_a_starved_program_gets_more_time() -> None:
    code = "import time\nwhile time.process_time() < 0.4: pass\nprint('done')"
    limits = Limits(timeout=2, wall=2.5, deadline=150)
    (slow,) = await grade_together("local", (code, limits), cpus=0.06)
    assert isinstance(slow, ProcessResult), slow
    assert slow.stdout == "done\n"
    assert slow.duration > 2.5


async def test_a_program_that_starves_for_good_is_masked() -> None:
    limits = Limits(timeout=5, wall=6, deadline=12)
    (starved,) = await grade_together("local", ("while True: pass", limits), cpus=0.02)
    assert isinstance(starved, Verdict)
    assert starved.outcome is Outcome.INFRA_ERROR


def freeze(sandbox: Sandbox, still: bool) -> None:
    """Let nothing of a sandbox run any more, its agent included, or let it run on."""
    assert sandbox.id is not None
    for pid in processes_of(sandbox.id):
        with contextlib.suppress(ProcessLookupError):  # it has ended since it was listed
            os.kill(pid, signal.SIGSTOP if still else signal.SIGCONT)


async def watch_frozen(limits: Limits, seconds: float) -> ProcessResult | Verdict:
    """Watch a program whose sandbox stands still for so long, and which then ends at once."""
    async with Session("local") as session, session.sandbox() as sandbox:
        argv = ["python3", "-c", "print('ready', flush=True)\ninput()"]

        async def attempt(*given: object) -> ProcessResult | Verdict:
            process = sandbox.exec(argv, stdin=True, setup=limited(limits))
            async for _ in process.stdout:
                break
            freeze(sandbox, True)
            watching = asyncio.create_task(watched(sandbox, process, limits))
            try:
                if not (await asyncio.wait([watching], timeout=seconds))[0]:
                    freeze(sandbox, False)
                    await process.stdin.write("\n")
                return await watching
            finally:
                watching.cancel()

        try:
            return await retried(session, limits, attempt)
        finally:
            freeze(sandbox, False)


async def test_a_frozen_sandbox_is_masked() -> None:
    verdict = await watch_frozen(Limits(timeout=1, wall=2, deadline=6), 3600)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome is Outcome.INFRA_ERROR


async def test_frozen_time_does_not_count() -> None:
    result = await watch_frozen(Limits(timeout=1, wall=3), 6)
    assert isinstance(result, ProcessResult), result
    assert result.returncode == 0


def test_usage_has_processes_memory_and_cpu_time(provider: str) -> None:
    def used(sandbox: Sandbox) -> Usage:
        usage = sandbox.usage().result()
        assert usage is not None
        return usage

    spin = "import time\nwhile time.process_time() < 0.5: pass"
    orphan = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos._exit(0)"
    with Session(provider) as session, session.sandbox() as sandbox:
        before = used(sandbox)
        sandbox.exec(["python3", "-c", spin], check=True).result()
        after = used(sandbox)
        sandbox.exec(["python3", "-c", orphan], check=True).result()
        assert (before.processes, after.processes, used(sandbox).processes) == (1, 1, 2)
        assert before.memory_bytes
        assert before.processor_seconds is not None
        assert after.processor_seconds is not None
        assert 0.5 <= after.processor_seconds - before.processor_seconds < 1
        assert after.starved_seconds is not None


class Still(FakeBox):
    """Runs nothing for a program, and tells no usage, like a hosted backend."""

    async def usage(self) -> Usage | None:
        return None


async def test_the_wall_bound_decides_when_usage_is_unknown() -> None:
    async with Session(FakeProvider(Still)) as session:
        limits = Limits(timeout=0.2, wall=0.5)
        assert is_timeout(await run(session, SandboxProgram(("sleep", "60")), limits))


async def test_an_attempt_is_tried_again_only_after_failures_of_the_infrastructure() -> None:
    tried = 0

    async def fail(*_: object) -> ProcessResult:
        nonlocal tried
        tried += 1
        raise (ProviderUnavailableError if tried < 3 else ConfigurationError)("gone")

    verdict = await retried(Session(FakeProvider(Still)), Limits(retries=1), fail)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert tried == 2
    with pytest.raises(ConfigurationError):
        await retried(Session(FakeProvider(Still)), Limits(), fail)
