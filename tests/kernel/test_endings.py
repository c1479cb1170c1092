"""The ends of cells and kernels: by their caller, by what runs in them, and by the infrastructure."""

import asyncio
import time
from typing import Any

import pytest

from sandboxkit import Ending, Sandbox, Session, errors
from sandboxkit.integrations.rewards import Phase, verdict_of
from sandboxkit.kernel import CellOutcome, CellResult, Kernel
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from tests.docker_here import require_docker
from tests.kernel.conftest import CELLS, KINDS
from tests.kernel.test_cells import SECONDS, ran

pytestmark = pytest.mark.timeout(900)
DAEMONS = "import subprocess\nfor n in 1, 2: subprocess.Popen(['sleep', f'97{n}'], start_new_session=n == 2)"
LEFT = "ls -dA /tmp/.sandboxkit-* 2>/dev/null; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 97[0-9]'"
DEAF = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
HOLDER = "import os, time; os.kill(os.getppid(), 9); time.sleep(1000)"


def left(box: Sandbox) -> list[str]:
    found = box.exec(["sh", "-c", LEFT]).result(SECONDS).stdout.splitlines()
    return [each for each in found if each]


def run_until_it_raises(kernel: Kernel) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        kernel.run("1").result(SECONDS)


def until_it_runs(box: Sandbox, mark: str) -> None:
    test = ["test", "-e", mark]
    until(lambda: not box.exec(test).result(SECONDS).returncode, "the cell runs", SECONDS)
    box.remove(mark).result(SECONDS)


def test_a_cell_past_its_timeout_is_interrupted_and_the_state_is_kept(kept: Kernel) -> None:
    for seconds in (1.0, 10.0, 60.0):  # on a busy machine it may not have begun by then
        endless = "print('begun'); held = 7\nwhile True: pass"
        result = kept.run(endless, timeout=seconds, grace=SECONDS).result(2 * SECONDS)
        if result.stdout:
            break
    assert (result.outcome, result.stdout) == (CellOutcome.TIMED_OUT, "begun\n")
    assert not result.ended
    assert result.error is not None
    assert result.error.name == "KeyboardInterrupt"
    assert ran(kept, "held").text == "7"
    waiting = "import subprocess\nsubprocess.run(['sleep', '979'])"
    for code in (waiting, "import asyncio\nawait asyncio.sleep(1000)"):
        stopped = kept.run(code, timeout=0.5, grace=SECONDS).result(SECONDS)
        assert (stopped.outcome, stopped.ended) == (CellOutcome.TIMED_OUT, False)
    assert ran(kept, "held").text == "7"


def test_code_that_ignores_the_interrupt_is_killed(box: Sandbox, kernel: Kernel) -> None:
    ran(kernel, f"held = 1\n{DAEMONS}")
    for seconds in (0.5, 5.0, 60.0):  # on a busy machine it may still hear by then
        deaf = kernel.run(f"print('begun')\n{DEAF}", timeout=seconds, grace=0.5)
        result = deaf.result(2 * SECONDS)
        if result.ended:
            break
    assert (result.outcome, result.ending) == (CellOutcome.TIMED_OUT, Ending.KILLED)
    assert result.stdout == "begun\n"
    assert result.error is not None
    assert "ignored an interrupt" in result.error.message
    assert left(box) == []
    with pytest.raises(errors.KernelError, match="restart"):
        kernel.run("1").result(SECONDS)
    kernel.restart().result(SECONDS)
    anew = kernel.run("held", timeout=SECONDS).result(SECONDS)
    assert (anew.execution_count, anew.error and anew.error.name) == (1, "NameError")
    running = kernel.run(f"open('/tmp/begun', 'w').close()\n{CELLS['stubborn']}")
    until_it_runs(box, "/tmp/begun")
    assert kernel.interrupt(timeout=0.5).result(SECONDS) is False
    kernel.restart().result(SECONDS)
    assert running.result(SECONDS).outcome is CellOutcome.INTERRUPTED
    assert running.result().ended
    assert ran(kernel, "1 + 1").text == "2"


def test_interrupting_and_cancelling_end_the_cell_alone(box: Sandbox, kept: Kernel) -> None:
    assert kept.interrupt().result(SECONDS) is True
    begun = "held = 3\nopen('/tmp/begun', 'w').close()\nimport time; time.sleep(1000)"
    running, queued = kept.run(begun), kept.run("held + 1")
    until_it_runs(box, "/tmp/begun")
    assert kept.running
    assert kept.interrupt(timeout=SECONDS).result(SECONDS) is True
    result = running.result(SECONDS)
    assert (result.outcome, result.ended) == (CellOutcome.INTERRUPTED, False)
    assert queued.result(SECONDS).text == "4"
    running = kept.run(begun)
    until_it_runs(box, "/tmp/begun")
    running.cancel()
    assert ran(kept, "held + 2").text == "5"


@pytest.mark.parametrize(("code", "ending", "says"), CELLS["deaths"])
def test_a_dead_kernel_says_how_it_died_and_ends_its_processes(
    box: Sandbox, kernel: Kernel, code: str, ending: str, says: str
) -> None:
    if kernel.backend == "ipykernel" and "signal " in says:
        pytest.skip("the same as with the small kernel, whose start is cheaper")
    ran(kernel, DAEMONS)
    result = kernel.run(f"print('last words')\n{code}", timeout=SECONDS).result(2 * SECONDS)
    check_died(box, kernel, result, Ending(ending), says)


def test_a_kernel_without_its_holder_ends_its_processes(box: Sandbox, kernel: Kernel) -> None:
    ran(kernel, DAEMONS)
    box.exec(["mkfifo", "/tmp/heard"]).result(SECONDS)
    dying = kernel.run(f"print('last words')\nopen('/tmp/heard').close()\n{HOLDER}")
    held = kernel._held
    assert held is not None
    until(lambda: "".join(held._outputs._printed) == "last words\n", "it is read", SECONDS)
    box.exec(["sh", "-c", ": >/tmp/heard; rm /tmp/heard"]).result(SECONDS)
    check_died(box, kernel, dying.result(SECONDS), Ending.SIGNAL, "supervisor")


def check_died(box: Sandbox, kernel: Kernel, result: CellResult, ending: Ending, says: str) -> None:
    assert (result.outcome, result.ending) == (CellOutcome.DIED, ending)
    assert result.stdout == "last words\n"
    assert result.error is not None
    assert result.error.name == "KernelEnded"
    assert says in result.error.message
    assert left(box) == []
    with pytest.raises(errors.KernelError, match="state of its cells is gone") as gone:
        kernel.run("1").result(SECONDS)
    assert verdict_of(gone.value, Phase.GRADED).attributable_to == "policy"


def test_modules_of_the_users_hide_none_of_ours() -> None:
    with Session("local") as session, session.sandbox() as box:
        for name in ("glob", "json", "sandboxkit", "socket"):
            box.write_file(f"{name}.py", "who = __name__").result(SECONDS)
        kernel = box.python(ipykernel=False)
        assert (
            ran(kernel, f"import sandboxkit; sandboxkit.who\n{DAEMONS}").outcome is CellOutcome.OK
        )
        assert kernel.run(HOLDER).result(SECONDS).outcome is CellOutcome.DIED
        assert left(box) == []


def test_a_kernel_that_dies_between_cells_fails_no_cell(kernel: Kernel) -> None:
    assert kernel.run(CELLS["dies_later"]).result(SECONDS).outcome is CellOutcome.OK
    kernel._sandbox.write_file("/tmp/die", b"").result(SECONDS)
    with pytest.raises(errors.KernelError, match="status 4"):
        run_until_it_raises(kernel)
    kernel._sandbox.remove("/tmp/die").result(SECONDS)


def test_closing_ends_all_processes_and_keeps_the_sandbox(box: Sandbox, kind: str) -> None:
    kernel = box.python(ipykernel=KINDS[kind])
    ran(kernel, DAEMONS)
    assert "sleep 971" in left(box)
    running = kernel.run("open('/tmp/begun', 'w').close()\nwhile True: pass")
    until_it_runs(box, "/tmp/begun")
    kernel.close().result(SECONDS)
    assert running.result(SECONDS).ended
    assert left(box) == []
    kernel.close().result(SECONDS)
    with pytest.raises(errors.KernelError, match="closed"):
        kernel.run("1").result(SECONDS)


def test_cancelling_while_a_kernel_is_killed_leaves_nothing(local: Sandbox) -> None:
    with local.python(ipykernel=False) as kernel:
        ran(kernel, DAEMONS)
        for seconds in (0.3, 3.0, 30.0):  # on a busy machine it may still hear by then
            running = kernel.run(DEAF, timeout=seconds, grace=0.3)
            deadline = time.monotonic() + SECONDS
            while (kernel._held is None or not kernel._held.ended) and not running.done():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            if kernel._held is not None and kernel._held.ended:
                break
        running.cancel()
        kernel.restart().result(SECONDS)
        assert left(local) == []
        assert ran(kernel, "1 + 1").text == "2"


def test_coroutines_can_share_a_kernel_and_cells_run_in_turn(local: Sandbox) -> None:
    async def use() -> list[str | None]:
        async with local.python(ipykernel=False, cwd="/tmp", env={"A": "1"}) as kernel:
            await kernel.run("import os; seen = []")
            cells = [f"seen.append({n}); seen, os.environ['A'], os.getcwd()" for n in range(3)]
            return [each.text for each in await asyncio.gather(*map(kernel.run, cells))]

    assert asyncio.run(use()) == [f"({list(range(n + 1))}, '1', '/tmp')" for n in range(3)]


def test_a_kernel_without_memory_says_so() -> None:
    with (
        Session("docker", image=require_docker(), memory_mb=128) as session,
        session.sandbox().python() as kernel,
    ):
        assert kernel.backend == "own"  # the image has no ipykernel
        result = kernel.run("b'x' * (1 << 30)", timeout=SECONDS).result(2 * SECONDS)
        assert (result.outcome, result.ending) == (CellOutcome.DIED, Ending.OUT_OF_MEMORY)


def test_a_sandbox_that_ends_is_not_the_cells_fault() -> None:
    with Session(FakeProvider()) as session:
        box = session.sandbox()
        kernel = box.python(ipykernel=False)
        running = kernel.run("while True: pass")
        until(lambda: kernel.running, "the cell runs", SECONDS)
        box.stop().result(SECONDS)
        with pytest.raises(errors.SandboxTerminatedError):
            running.result(SECONDS)
        with pytest.raises(errors.SandboxTerminatedError):
            kernel.run("1").result(SECONDS)
        kernel.close().result(SECONDS)


def test_a_missing_program_of_the_image_is_named(local: Sandbox) -> None:
    with pytest.raises(errors.CommandStartError, match="needs a Python in the image"):
        local.python(python="python9").start().result(SECONDS)
    with pytest.raises(errors.CommandStartError, match="cannot start with 'false'"):
        local.python(python="false").start().result(SECONDS)
    with pytest.raises(errors.CommandStartError, match="ipykernel is not installed"):
        local.python(env={"PYTHONPATH": ""}, ipykernel=True).start().result(SECONDS)
    assert left(local) == []


def test_bad_input_is_refused_before_anything_starts() -> None:
    with Session(FakeProvider()) as session:
        box = session.sandbox()
        wrong: dict[str, Any] = {"output_limit": 1, "ipykernel": 1, "cwd": "x", "pyhton": "x"}
        for option, value in wrong.items():
            with pytest.raises(errors.ConfigurationError, match=option):
                box.python(**{option: value})
        kernel = box.python()
        for code in (3, b"x", "\ud800"):
            with pytest.raises(errors.ConfigurationError, match="code"):
                kernel.run(code)  # type: ignore[arg-type]
        with pytest.raises(errors.ConfigurationError, match="timeout"):
            kernel.run("1", timeout=0)
        assert session.list().result(SECONDS) == []
