"""Forks of a kernel: what they inherit, that each is by itself, and that none is left behind."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from sandboxkit import Ending, Operation, Sandbox, Session
from sandboxkit.errors import ConfigurationError, KernelError, SandboxError
from sandboxkit.kernel import CellOutcome, Kernel
from sandboxkit.kernel._process import KernelProcess
from sandboxkit.testing.conformance._base import until
from tests.docker_here import require_docker
from tests.kernel.conftest import CELLS
from tests.kernel.test_cells import SECONDS, ran
from tests.kernel.test_endings import DAEMONS, DEAF, left, until_it_runs
from tests.process_list import processes
from tests.rewards.conftest import provider

__all__ = ["provider"]  # a fixture
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def origin(provider: str, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    box: Sandbox = request.getfixturevalue(provider)
    with box.python(ipykernel=False) as kernel:
        yield kernel


def forked(kernel: Kernel, n: int) -> list[Kernel]:
    forks = kernel.fork(n).result(SECONDS)
    kernels = [each for each in forks if isinstance(each, Kernel)]
    assert len(kernels) == n, forks
    return kernels


def test_eight_forks_have_the_variables_and_each_changes_and_prints_its_own(origin: Kernel) -> None:
    ran(origin, CELLS["set_up"])
    forks = forked(origin, 8)
    kernels = [origin, *forks]
    cells = [
        each.run(CELLS["change"].replace("N", str(n)), timeout=SECONDS)
        for n, each in enumerate(kernels, 1)
    ]
    for n, cell in enumerate(cells, 1):
        result = cell.result(SECONDS)
        assert result.text == f"({n}, 100000, '/tmp', 'awaited')", result
        assert result.stdout == f"printed {n}\nraw {n}\nchild {n}\n"
    assert len({ran(each, "os.getpid()").text for each in kernels}) == 9
    again = forked(forks[3], 2)
    assert [ran(each, "numbers['n'] += 1; numbers['n']").text for each in again] == ["6", "6"]
    assert [ran(each, "numbers['n']").text for each in (origin, forks[3])] == ["1", "5"]
    forks[3].close().result(SECONDS)
    with pytest.raises(KernelError, match="closed"):
        again[0].run("1").result(SECONDS)
    assert ran(forks[4], "numbers['n']").text == "6"


def test_the_end_of_one_takes_its_own_processes_alone(provider: str, origin: Kernel) -> None:
    box = origin._sandbox
    ran(origin, "held = 5")
    late, exits, interrupted, stays = forked(origin, 4)
    for each in (late, exits, origin):
        ran(each, DAEMONS)
    ran(stays, DAEMONS.replace("97", "98"))
    result = late.run(f"print('begun')\n{DEAF}", timeout=3, grace=0.5).result(SECONDS)
    assert (result.outcome, result.ending) == (CellOutcome.TIMED_OUT, Ending.KILLED)
    assert result.stdout == "begun\n"
    running = interrupted.run("open('/tmp/begun', 'w').close()\nwhile True: pass")
    until_it_runs(box, "/tmp/begun")
    assert interrupted.interrupt(timeout=SECONDS).result(SECONDS) is True
    assert running.result(SECONDS).outcome is CellOutcome.INTERRUPTED
    result = exits.run("print('last'); import os; os._exit(3)").result(SECONDS)
    assert (result.outcome, result.ending) == (CellOutcome.DIED, Ending.EXITED)
    assert result.stdout == "last\n"
    result = origin.run("import os; os.kill(os.getpid(), 9)").result(SECONDS)
    assert (result.outcome, result.ending) == (CellOutcome.DIED, Ending.SIGNAL)
    with pytest.raises(KernelError, match="signal 9"):
        origin.fork(1).result(SECONDS)
    assert left(box) == []
    assert [ran(each, "held").text for each in (interrupted, stays)] == ["5", "5"]
    origin.restart().result(SECONDS)
    assert origin.run("held").result(SECONDS).outcome is CellOutcome.ERROR
    assert ran(stays, "held").text == "5"
    for each in (interrupted, late, exits):
        each.close().result(SECONDS)
    assert sleeping(box) == ["sleep 981", "sleep 982"]
    origin.close().result(SECONDS)
    assert sleeping(box) == []
    with pytest.raises(KernelError, match="closed"):
        stays.run("1").result(SECONDS)


def sleeping(box: Sandbox) -> list[str]:
    shows = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 98[0-9]'"
    return sorted(box.exec(["sh", "-c", shows]).result(SECONDS).stdout.splitlines())


def test_one_without_memory_or_processes_fails_by_itself(provider: str) -> None:
    image = require_docker() if provider == "docker" else None
    with (
        Session(provider, image=image, memory_mb=200, pids=64) as session,
        session.sandbox().python(ipykernel=False) as origin,
    ):
        first, second = forked(origin, 2)
        result = first.run("b'x' * (1 << 30)", timeout=SECONDS).result(2 * SECONDS)
        assert (result.outcome, result.ending) == (CellOutcome.DIED, Ending.OUT_OF_MEMORY)
        result = second.run("import os; os.kill(os.getpid(), 9)").result(SECONDS)
        assert (result.outcome, result.ending) == (CellOutcome.DIED, Ending.SIGNAL)
        results = origin.fork(80).result(SECONDS)
        failed = [each for each in results if not isinstance(each, Kernel)]
        kernels = [each for each in results if isinstance(each, Kernel)]
        assert len(kernels) > 10
        assert len(failed) > 10
        assert all(isinstance(each, KernelError) for each in failed)
        assert all("Resource temporarily unavailable" in str(each) for each in failed)
        assert [ran(each, "1 + 1").text for each in (kernels[-1], origin)] == ["2", "2"]


def test_forks_beyond_the_limit_of_open_files_fail_and_end_no_other(local: Sandbox) -> None:
    few = '#!/bin/sh\nulimit -n 64\nexec python3 "$@"\n'
    local.write_file("/tmp/few", few, mode=0o755).result(SECONDS)
    with local.python(ipykernel=False, python="/tmp/few") as origin:
        for _ in range(2):
            forks = origin.fork(20).result(SECONDS)
            kernels = [each for each in forks if isinstance(each, Kernel)]
            errors = [str(each) for each in forks if not isinstance(each, Kernel)]
            assert len(kernels) >= 5
            assert len(errors) >= 5
            assert all("too many files" in each for each in errors)
            assert {ran(each, "1 + 1").text for each in (origin, *kernels)} == {"2"}
            for each in kernels:
                each.close().result(SECONDS)


def test_what_cannot_be_forked_is_refused_beforehand(provider: str, origin: Kernel) -> None:
    box = origin._sandbox
    ran(origin, "import threading, asyncio\ngo = threading.Event()")
    ran(origin, "threading.Thread(target=go.wait, args=(60,), name='waits').start()")
    with pytest.raises(KernelError, match=r"other threads \(waits\)"):
        origin.fork(2).result(SECONDS)
    ran(origin, "go.set(); [each.join() for each in threading.enumerate()[1:]];")
    ran(origin, "async def begin(): return asyncio.ensure_future(asyncio.sleep(60))")
    ran(origin, "task = await begin()")
    with pytest.raises(KernelError, match="event loop"):
        origin.fork(1).result(SECONDS)
    ran(origin, "task.cancel(); await asyncio.sleep(0)")
    running = origin.run("open('/tmp/begun', 'w').close()\nimport time; time.sleep(1000)")
    until_it_runs(box, "/tmp/begun")
    with pytest.raises(KernelError, match="runs a cell"):
        origin.fork(1).result(SECONDS)
    origin.interrupt().result(SECONDS)
    assert running.result(SECONDS).outcome is CellOutcome.INTERRUPTED
    for n in (0, -1, 1.5):
        with pytest.raises(ConfigurationError, match="n="):
            origin.fork(n)  # type: ignore[arg-type]
    assert ran(forked(origin, 1)[0], "len(threading.enumerate())").text == "1"


def test_cancelling_a_fork_leaves_no_process_and_the_kernel_goes_on(local: Sandbox) -> None:
    with local.python(ipykernel=False) as origin:
        ran(origin, "held = 1")
        before = pythons(local)
        for delay in (0, 0.001, 0.003, 0.006, 0.01):
            forking = origin.fork(8)
            time.sleep(delay)
            if not forking.cancel():  # a busy machine has made the forks by then
                for each in forking.result(SECONDS):
                    assert isinstance(each, Kernel)
                    each.close().result(SECONDS)
            until(lambda: pythons(local) == before, "the forks are gone", SECONDS)
            assert ran(origin, "held").text == "1"


def test_a_fork_that_is_cancelled_late_leaves_no_process(
    local: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: queue.SimpleQueue[Operation[list[Kernel | SandboxError]]] = queue.SimpleQueue()
    fork = KernelProcess.fork

    async def cancelled(kernel: KernelProcess, count: int) -> list[KernelProcess | SandboxError]:
        forks = await fork(kernel, count)
        assert given.get().cancel()
        return forks

    with local.python(ipykernel=False) as origin:
        ran(origin, "held = 1")
        before = pythons(local)
        with monkeypatch.context() as patched:
            patched.setattr(KernelProcess, "fork", cancelled)
            forking = origin.fork(2)
            given.put(forking)
            with pytest.raises(CancelledError):
                forking.result(SECONDS)
            until(lambda: pythons(local) == before, "the forks are gone", SECONDS)
        assert ran(forked(origin, 1)[0], "held").text == "1"


def pythons(box: Sandbox) -> int:
    count = "grep -l '[<]sandboxkit' /proc/[0-9]*/cmdline | wc -l"
    return int(box.exec(["sh", "-c", count]).result(SECONDS).stdout)


@pytest.mark.parametrize("kind", ["local-ipykernel"], indirect=True)
def test_ipykernel_is_refused(kind: str, kept: Kernel) -> None:
    with pytest.raises(ConfigurationError, match="ipykernel=False"):
        kept.fork(1).result(SECONDS)


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_no_fork_outlives_its_sandbox(provider: str, end: str) -> None:
    mark = f"{os.getpid()}{time.time_ns() % 10**6}"
    argv, pipe = [sys.executable, "-c", CELLS["owner"], provider, mark], subprocess.PIPE
    env = {"SANDBOXKIT_DOCKER_IMAGE": "sandboxkit/python:3.11", **os.environ}
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        assert sleeping_here(mark) == 4
        if end == "killed":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.stdin.write("\n")
            owner.stdin.flush()
            assert owner.stdout.readline() == "stopped\n"
        until(lambda: not sleeping_here(mark), "the forks are gone", SECONDS)


def sleeping_here(mark: str) -> int:
    return sum(each.args == f"sleep {mark}" for each in processes())
