"""Tests of a sandbox's lifecycle, from first use to stop."""

import threading
import time
from pathlib import Path

from sandboxkit import (
    ConfigurationError,
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    SandboxState,
    SandboxTerminatedError,
    Session,
    wait,
)
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, mine, token, until
from sandboxkit.testing.conformance._pytest import pytest


class LifecycleConformance(Conformance):
    """Start, stop, lifetime, main command, shell."""

    def test_a_sandbox_that_is_not_used_is_not_created(self, session: Session) -> None:
        sandbox = session.sandbox()
        assert sandbox.id is None
        assert mine(session) == []

    def test_the_first_use_starts_it(self, session: Session) -> None:
        sandbox = session.sandbox()
        assert sandbox.exec(["echo", "hello"]).result(DEADLINE).stdout == "hello\n"
        assert [info.id for info in mine(session)] == [sandbox.id]

    def test_concurrent_first_uses_share_one_start(self, session: Session) -> None:
        sandbox = session.sandbox()
        commands = [sandbox.exec(["true"]) for _ in range(5)]
        assert [command.result(DEADLINE).returncode for command in commands] == [0] * 5
        assert len(mine(session)) == 1

    def test_the_context_starts_and_stops_it(self, session: Session) -> None:
        with session.sandbox() as sandbox:
            assert sandbox.id is not None
            assert len(mine(session)) == 1
        assert mine(session) == []

    def test_status_is_running(self, shared: Sandbox) -> None:
        info = shared.status().result(DEADLINE)
        assert (info.id, info.state) == (shared.id, SandboxState.RUNNING)
        assert info.provider == shared.provider_name

    def test_stop_removes_it(self, session: Session, sandbox: Sandbox) -> None:
        assert len(mine(session)) == 1
        sandbox.stop().result(DEADLINE)
        assert mine(session) == []

    def test_stop_ends_its_processes(self, sandbox: Sandbox) -> None:
        mark = token()
        process = sandbox.exec(["sh", "-c", "echo ready; while :; do sleep 1; done", mark])
        assert next(iter(process.stdout.lines())) == "ready"
        sandbox.stop().result(DEADLINE)
        with pytest.raises(SandboxTerminatedError):
            process.result(DEADLINE)
        until(lambda: not _on_this_machine(mark), "the command's process is gone", 10)

    def test_stop_is_idempotent(self, sandbox: Sandbox) -> None:
        sandbox.stop().result(DEADLINE)
        sandbox.stop().result(DEADLINE)

    def test_stop_may_be_called_concurrently(self, session: Session, sandbox: Sandbox) -> None:
        stops = [sandbox.stop() for _ in range(5)]
        wait(stops, num_returns=5, timeout=DEADLINE)
        assert [stop.exception(DEADLINE) for stop in stops] == [None] * 5
        assert mine(session) == []

    def test_stopping_an_already_stopped_sandbox_succeeds(
        self, session: Session, sandbox: Sandbox
    ) -> None:
        assert sandbox.id is not None
        other = session.from_id(sandbox.id).result(DEADLINE)
        other.stop().result(DEADLINE)
        sandbox.stop().result(DEADLINE)

    def test_stop_during_the_start_leaves_nothing(self, session: Session) -> None:
        for delay in (0.0, 0.005, 0.02, 0.1, 0.3):
            sandbox = session.sandbox()
            start = sandbox.start()
            threading.Event().wait(delay)  # stop at different moments of the start
            sandbox.stop().result(DEADLINE)
            error = start.exception(DEADLINE)
            assert error is None or isinstance(error, SandboxTerminatedError)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:  # nothing may appear late either
            assert mine(session) == []

    def test_closing_the_session_stops_everything(self, session: Session) -> None:
        for sandbox in [session.sandbox() for _ in range(3)]:
            sandbox.start().result(DEADLINE)
        assert len(mine(session)) == 3
        provider = session.sandbox()._provider
        session.close().result(DEADLINE)
        with Session(provider) as other:
            tags = session._spec.tags
            assert other.list(tags).result(DEADLINE) == []

    def test_exec_in_a_stopped_sandbox_is_refused(self, sandbox: Sandbox) -> None:
        sandbox.stop().result(DEADLINE)
        with pytest.raises(SandboxTerminatedError):
            sandbox.exec(["true"])

    def test_exec_in_an_ended_sandbox_is_a_typed_error(
        self, session: Session, sandbox: Sandbox
    ) -> None:
        assert sandbox.id is not None
        session.from_id(sandbox.id).result(DEADLINE).stop().result(DEADLINE)
        with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
            sandbox.exec(["true"]).result(DEADLINE)

    def test_files_of_an_ended_sandbox_are_a_typed_error(
        self, session: Session, sandbox: Sandbox
    ) -> None:
        assert sandbox.id is not None
        session.from_id(sandbox.id).result(DEADLINE).stop().result(DEADLINE)
        with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
            sandbox.read_file("/workspace/x").result(DEADLINE)

    def test_the_lifetime_ends_it(self, session: Session) -> None:
        sandbox = session.sandbox(lifetime=2).start().result(DEADLINE)
        assert len(mine(session)) == 1
        until(lambda: mine(session) == [], "the sandbox has ended", 15)
        with pytest.raises(SandboxError):
            sandbox.exec(["true"]).result(DEADLINE)

    def test_the_lifetime_ends_a_running_command(self, session: Session) -> None:
        process = session.sandbox(lifetime=2).exec(["sleep", "1000"])
        with pytest.raises(SandboxTerminatedError):
            process.result(15)

    def test_renew_extends_the_lifetime(self, session: Session) -> None:
        sandbox = session.sandbox(lifetime=2).start().result(DEADLINE)
        sandbox.renew(600).result(DEADLINE)
        assert sandbox.exec(["sleep", "3"]).result(DEADLINE).returncode == 0
        assert len(mine(session)) == 1

    def test_renew_may_shorten_the_lifetime(self, session: Session, sandbox: Sandbox) -> None:
        sandbox.renew(1).result(DEADLINE)
        until(lambda: mine(session) == [], "the sandbox has ended", 15)

    def test_logs_and_status_of_a_main_command(self, session: Session) -> None:
        command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
        sandbox = session.sandbox(command=command).start().result(DEADLINE)
        assert sandbox.wait().result(DEADLINE) == 3
        logs = sandbox.logs().result(DEADLINE)
        assert b"out\n" in logs
        assert b"err\n" in logs

    def test_commands_run_beside_the_main_command(self, session: Session) -> None:
        sandbox = session.sandbox(command=["sh", "-c", "echo up; sleep 1000"])
        assert sandbox.exec(["echo", "beside"]).result(DEADLINE).stdout == "beside\n"
        until(lambda: sandbox.logs().result(DEADLINE) == b"up\n", "the main command's output")
        assert not sandbox.wait().done()

    def test_waiting_without_a_main_command_is_refused(self, shared: Sandbox) -> None:
        with pytest.raises(ConfigurationError):
            shared.wait().result(DEADLINE)

    def test_a_terminal_keeps_what_its_commands_leave(self, shared: Sandbox, folder: str) -> None:
        with shared.terminal(cwd=folder) as terminal:
            terminal.run("mkdir inner; cd inner; colour() { echo blue; }").result(DEADLINE)
            kept = terminal.run('colour; echo "${PWD##*/}"; (exit 7)').result(DEADLINE)
            assert (kept.output, kept.returncode) == ("blue\ninner\n", 7)
            assert terminal.run("echo begun; sleep 1000", timeout=1).result(DEADLINE).running
            assert terminal.interrupt(timeout=DEADLINE).result(DEADLINE).returncode == 130
            assert terminal.run("exit 3").result(DEADLINE).ended

    def test_run_uses_a_fresh_sandbox_each_time(self, session: Session) -> None:
        first = session.run(["sh", "-c", "echo 1 > file; ls"]).result(DEADLINE)
        second = session.run(["ls"]).result(DEADLINE)
        assert (first.stdout, second.stdout) == ("file\n", "")
        until(lambda: mine(session) == [], "both sandboxes are gone")


def _on_this_machine(mark: str) -> bool:

    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                return True
        except OSError:
            pass
    return False
