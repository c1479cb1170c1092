"""Programs in a terminal that go on: deadlines, interrupts, answers, and prompts of their own."""

import asyncio

import pytest

from sandboxkit import Operation, Session
from sandboxkit.terminal import Expected, Terminal, TerminalResult
from sandboxkit.testing import FakeProvider

SECONDS = 60.0


def begun(terminal: Terminal, command: str, mark: str, seconds: float) -> None:
    """Run a command that goes on, and wait until it has printed a mark, however slow the machine."""
    first = terminal.run(command, timeout=seconds).result()
    assert first.running
    if mark not in first.output:
        assert terminal.expect(f"{mark}\n", timeout=SECONDS).result().match


def test_a_deadline_returns_partial_output_and_the_command_continues(terminal: Terminal) -> None:
    waits = "until test -e /tmp/go; do sleep 0.05; done; rm /tmp/go"
    first = terminal.run(f"echo begun; {waits}; echo done; (exit 6)", timeout=0.5).result()
    assert (first.running, first.returncode) == (True, None)
    output = first.output
    if not output:  # on a busy machine it may take longer
        output = terminal.expect("begun\n", timeout=SECONDS).result().output
    assert output == "begun\n"
    assert terminal.wait(timeout=0).result().output == ""
    terminal._sandbox.exec(["touch", "/tmp/go"]).result(SECONDS)
    last = terminal.wait(timeout=SECONDS).result()
    assert (last.output, last.returncode) == ("done\n", 6)
    assert terminal.wait().result().returncode == 6


@pytest.mark.parametrize("program", ["sleep 74", "while :; do :; done", "sleep 75 | cat"])
def test_an_interrupt_ends_what_runs(terminal: Terminal, program: str) -> None:
    begun(terminal, f"echo begun; {program}; echo never", "begun", 0.3)
    ended = terminal.interrupt(timeout=SECONDS).result()
    assert (ended.output, ended.returncode) == ("\n", 130)
    assert terminal.run("echo $?", timeout=SECONDS).result().output == "130\n"
    assert terminal.interrupt().result().returncode == 0  # nothing runs


def test_a_program_that_ignores_the_interrupt_is_killed(terminal: Terminal) -> None:
    raw = "import tty, time, sys; tty.setraw(0); print('raw', flush=True); time.sleep(76)"
    for program in ("(trap '' INT; echo raw; sleep 77)", f'python3 -c "{raw}"'):
        begun(terminal, f"x=kept; {program}", "raw", 0.5)
        assert terminal.interrupt(timeout=0.2).result().running
        assert terminal.kill(timeout=SECONDS).result().returncode == 137
    shown = terminal.run("echo $x; stty -a | grep -o ' icanon'", timeout=SECONDS).result()
    assert shown.output == "kept\n icanon\n"


def test_a_program_can_be_answered(terminal: Terminal) -> None:
    running = terminal.run("read -p 'name? ' name; cat; echo \"<$name>\"", timeout=SECONDS)
    assert terminal.expect(r"name\? ", timeout=SECONDS).result().match
    terminal.send("ann\n").result()
    terminal.send("more\n\x04").result()
    assert running.result().output == "more\n<ann>\n"


def test_python_can_be_used_interactively(terminal: Terminal) -> None:
    terminal.send("python3 -q\n").result()
    assert terminal.expect(">>> ", timeout=SECONDS).result().match
    terminal.send("x = 6 * 7\nx\n").result()
    assert "42\n" in terminal.expect("42\n>>> ", timeout=SECONDS).result().output
    assert terminal.expect("WON'T COME", timeout=0.1).result() == Expected("", None)
    terminal.send("print('go', 'on') or exec('while True: pass')\n").result()
    assert terminal.expect("go on\n", timeout=SECONDS).result().match
    assert terminal.interrupt(timeout=0.5).result().running
    terminal.send("exit(5)\n").result()
    assert terminal.wait(timeout=SECONDS).result().returncode == 5
    assert terminal.run("echo back", timeout=SECONDS).result().output == "back\n"


def test_output_that_arrived_between_calls_is_read(terminal: Terminal) -> None:
    terminal.send("printf 'x\\377y'; printf END\n").result()
    assert terminal.expect("x.y", timeout=SECONDS).result().output == "x\ufffdy"
    terminal.wait(timeout=SECONDS).result()
    terminal.send("echo here\n").result()
    assert terminal.expect("here", timeout=SECONDS).result().match
    assert terminal.read().result() in ("", "\n")


@pytest.mark.anyio
async def test_coroutines_and_a_wait_that_is_cancelled() -> None:
    async with Session(FakeProvider()) as session, session.sandbox().terminal() as terminal:
        box = terminal._sandbox
        waiting = asyncio.ensure_future(_await(terminal.run("sleep 0.5; touch done; sleep 78")))
        while not terminal.running:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while not await box.list_dir("/workspace"):
            await asyncio.sleep(0.05)
        assert (await terminal.interrupt(timeout=SECONDS)).returncode == 130
        assert (await terminal.run("echo on")).output == "on\n"


async def _await(running: Operation[TerminalResult]) -> TerminalResult:
    return await running
