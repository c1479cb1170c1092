"""The ends of terminals: by their caller, by what runs in them, and by the infrastructure."""

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import ClassVar

import anyio
import pytest
from typing_extensions import override

from sandboxkit import CommandStartError, Sandbox, SandboxTerminatedError, Session, TerminalError
from sandboxkit.terminal._shell import Shell
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from sandboxkit.testing.fake import FakeBox, members
from tests.terminal.test_commands import CASES

SECONDS = 60.0
LEFT = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 8[0-9]' | sort"
DAEMONS = "sleep 80 & nohup setsid sleep 81 >/dev/null 2>&1 & (sleep 82 & disown)"
"""What each of them leaves behind, unless its terminal ends it."""


def left(box: Sandbox) -> list[str]:
    script = f"ls -d /tmp/.sandboxkit-*; {LEFT}"
    return box.exec(["sh", "-c", script]).result(SECONDS).stdout.splitlines()


def test_closing_ends_all_commands_and_keeps_the_sandbox(box: Sandbox) -> None:
    with box.terminal() as terminal:
        assert terminal.run(DAEMONS, timeout=SECONDS).result().returncode == 0
        until(lambda: left(box)[1:] == ["sleep 80", "sleep 81", "sleep 82"], "they run", SECONDS)
        assert terminal.run("sleep 83", timeout=0.2).result().running
    assert left(box) == []
    terminal.close().result(SECONDS)
    with pytest.raises(TerminalError, match="closed") as closed:
        terminal.run("true").result(SECONDS)
    assert closed.value.ended


ENDS = CASES["ends"]


@pytest.mark.parametrize(("command", "status", "says"), ENDS.values(), ids=ENDS)
def test_a_shell_that_ends_says_so_and_ends_its_processes(
    box: Sandbox, command: str, status: int | None, says: str
) -> None:
    with box.terminal() as terminal:
        terminal.run(DAEMONS, timeout=SECONDS).result()
        terminal.read().result()
        result = terminal.run(command, timeout=SECONDS).result()
        assert (result.ended, result.running) == (True, False)
        assert status in (None, result.returncode)
        assert result.output.endswith(says)
        until(lambda: left(box) == [], "nothing is left", SECONDS)
        with pytest.raises(TerminalError, match="has ended with status") as over:
            terminal.run("true").result(SECONDS)
        assert over.value.ended
        assert terminal.wait().result(SECONDS).ended


def test_a_command_is_not_run_where_the_shell_ends_while_it_is_stored(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Shell.store

    async def kill_then_store(shell: Shell, command: str) -> str | None:
        await box.exec(["sh", "-c", "kill -9 $(cat /tmp/shell)"])
        with anyio.fail_after(SECONDS):
            while not shell.ended:
                await shell.change()
        return await store(shell, command)

    with box.terminal() as terminal:
        terminal.run("echo $$ > /tmp/shell").result(SECONDS)
        monkeypatch.setattr(Shell, "store", kill_then_store)
        with pytest.raises(TerminalError, match="has ended with status 137") as raised:
            terminal.run("echo never").result(SECONDS)
    assert raised.value.ended


def test_forged_reports_are_ignored(box: Sandbox) -> None:
    with box.terminal() as terminal:
        flood = "cd /tmp/.sandboxkit-*; for i in {1..200}; do printf '%0999d\\n' 1; done >status"
        assert terminal.run(f"{flood}; (exit 5)", timeout=SECONDS).result().returncode == 5
        assert terminal.run("cd /tmp; echo on", timeout=SECONDS).result().output == "on\n"


def test_an_image_without_bash_names_what_is_missing() -> None:
    with Session(FakeProvider(), env={"PATH": "/nothing"}) as session:
        with pytest.raises(CommandStartError, match="needs bash, stty and mkfifo") as lacking:
            session.sandbox().terminal().start().result(SECONDS)
        assert lacking.value.errno == errno.ENOENT


def test_a_start_that_fails_leaves_nothing_and_may_be_tried_again(box: Sandbox) -> None:
    terminal = box.terminal(cwd="/tmp/later")
    with pytest.raises(CommandStartError, match="/tmp/later"):
        terminal.start().result(SECONDS)
    assert left(box) == []
    box.exec(["mkdir", "/tmp/later"]).result(SECONDS)
    assert terminal.run("pwd", timeout=SECONDS).result().output == "/tmp/later\n"
    terminal.close().result(SECONDS)
    box.remove("/tmp/later").result(SECONDS)


class Piecemeal(FakeBox):
    """It ends one process after another, of which the shells see something."""

    first: ClassVar[signal.Signals]

    @override
    async def delete(self) -> None:
        del self.backend.boxes[self.id]
        for pid in members(f"box:{self.folder}", None):
            with contextlib.suppress(OSError):  # it has just ended
                if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                    os.kill(pid, self.first)
        await anyio.sleep(0.5)
        self.backend.boxes[self.id] = self
        await super().delete()


@pytest.mark.parametrize("first", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stop_during_a_command_is_not_the_commands_fault(
    first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Piecemeal, "first", first, raising=False)
    with Session(FakeProvider(Piecemeal)) as session:
        box = session.sandbox()
        terminal = box.terminal()
        waiting = terminal.run("touch begun; sleep 84")
        until(lambda: box.list_dir("/workspace").result(SECONDS) != [], "it has begun", SECONDS)
        box.stop()
        with pytest.raises(SandboxTerminatedError):
            waiting.result(SECONDS)
        with pytest.raises(SandboxTerminatedError):
            terminal.run("true").result(SECONDS)
        terminal.close().result(SECONDS)


def test_a_strict_sandbox_of_another_user_has_terminals() -> None:
    with Session("local", profile="strict") as session, session.sandbox().terminal() as terminal:
        seen = terminal.run("id -u; touch /usr/x; tty", timeout=SECONDS).result().output
        assert "Read-only" in seen or "Permission denied" in seen
        assert "/dev/pts/" in seen
