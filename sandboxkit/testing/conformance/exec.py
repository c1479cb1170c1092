"""Tests of one command's status, directory, environment, user and terminal."""

import errno

from sandboxkit import (
    CommandFailedError,
    CommandStartError,
    ConfigurationError,
    Ending,
    PtySize,
    Sandbox,
    SandboxFileError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, token
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.types import CommandFile, CommandSetup


class ExecConformance(Conformance):
    """Everything about a command except its streams and how it is killed."""

    def test_the_exit_status_is_exact(self, shared: Sandbox) -> None:
        for status in (0, 1, 2, 125, 255):
            result = shared.exec(["sh", "-c", f"exit {status}"]).result(DEADLINE)
            assert result.returncode == status

    def test_arguments_arrive_exactly(self, shared: Sandbox) -> None:
        arguments = ["", " a  b ", "'\"$HOME`*\\", "new\nline", "grüße 🎉", "-n", "--", "{}"]
        script = (
            "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
        )
        result = shared.exec(["python3", "-c", script, *arguments]).result(DEADLINE)
        assert result.stdout.split("\0") == arguments

    def test_a_missing_program_has_no_status(self, shared: Sandbox) -> None:
        for program in ("no-such-program-here", "/no/such/program"):
            with pytest.raises(CommandStartError, match="program") as caught:
                shared.exec([program]).result(DEADLINE)
            assert caught.value.errno in (errno.ENOENT, None)
            assert not caught.value.retryable

    def test_what_cannot_be_executed_has_no_status(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/plain", b"text", mode=0o644).result(DEADLINE)
        with pytest.raises(CommandStartError, match="plain") as caught:
            shared.exec([f"{folder}/plain"]).result(DEADLINE)
        assert caught.value.errno in (errno.EACCES, None)

    def test_a_program_may_exit_with_what_a_shell_says(self, shared: Sandbox) -> None:
        for status in (126, 127, 137):
            result = shared.exec(["sh", "-c", f"exit {status}"]).result(DEADLINE)
            assert result.returncode == status
            assert result.ending in (Ending.EXITED, None)

    def test_a_setup_writes_files_and_lowers_limits(self, shared: Sandbox, folder: str) -> None:
        script = 'cat a; [ -w b ] || [ "$(id -u)" = 0 ]; ls -l b; ulimit -f; ulimit -c; ulimit -t; '
        script += '[ "$(ulimit -S -s)" = "$(ulimit -H -s)" ] && ulimit -S -t 9 || exit 3'
        large = bytes(3 << 20)  # more than what a provider sends along with a command
        setup = CommandSetup(
            (CommandFile(f"{folder}/a", b"written\n"), CommandFile(f"{folder}/b", large, 0o555)),
            {"core": (0, 0), "fsize": (4 << 20, 4 << 20), "cpu": (7, 8), "stack": (None, None)},
        )
        result = shared.exec(["sh", "-c", script], cwd=folder, setup=setup).result(DEADLINE)
        first, listed, *rest = result.stdout.splitlines()
        assert (first, listed[:10], listed.split()[4]) == ("written", "-r-xr-xr-x", str(3 << 20))
        assert rest == ["8192", "0", "7"], result
        assert result.returncode != 0  # the hard limit of CPU time is below 9 s
        plain = shared.exec(["sh", "-c", "ulimit -t"]).result(DEADLINE)
        assert plain.stdout != "7\n"  # the limits are those of one command

    def test_a_file_of_a_setup_that_cannot_be_written_is_named(
        self, shared: Sandbox, folder: str
    ) -> None:
        setup = CommandSetup((CommandFile(folder, b""),))
        with pytest.raises(SandboxFileError, match="directory") as caught:
            shared.exec(["true"], setup=setup).result(DEADLINE)
        assert caught.value.path == folder

    def test_commands_start_in_the_workdir(self, session: Session) -> None:
        sandbox = session.sandbox(workdir="/workspace/deep/er")
        assert sandbox.exec(["pwd"]).result(DEADLINE).stdout.endswith("/workspace/deep/er\n")

    def test_commands_start_where_workdir_says(self, shared: Sandbox) -> None:
        workdir = shared.workdir().result(DEADLINE)
        assert shared.exec(["pwd"]).result(DEADLINE).stdout.endswith(f"{workdir}\n")

    def test_commands_have_the_user_of_the_spec(self, shared: Sandbox) -> None:
        script = "id -u; id -un 2> /dev/null || echo '?'"
        user = shared.exec(["sh", "-c", script]).result(DEADLINE).stdout.split()
        assert shared.spec.user in (None, *user)

    def test_the_workdir_is_writable(self, shared: Sandbox, folder: str) -> None:
        script = "echo 1 > new && cat new"
        assert shared.exec(["sh", "-c", script], cwd=folder).result(DEADLINE).stdout == "1\n"

    def test_cwd_is_honoured(self, shared: Sandbox, folder: str) -> None:
        assert shared.exec(["pwd"], cwd=folder).result(DEADLINE).stdout.endswith(f"{folder}\n")

    def test_nothing_starts_in_a_cwd_that_does_not_exist(self, shared: Sandbox) -> None:
        with pytest.raises(CommandStartError, match="/workspace/no/such") as caught:
            shared.exec(["true"], cwd="/workspace/no/such").result(DEADLINE)
        assert caught.value.errno in (errno.ENOENT, None)

    def test_env_reaches_the_command(self, shared: Sandbox) -> None:
        env = {"PLAIN": "1", "ODD": "a b\n'\"$x=ü"}
        result = shared.exec(["sh", "-c", 'printf %s "$PLAIN$ODD"'], env=env).result(DEADLINE)
        assert result.stdout == "1a b\n'\"$x=ü"

    def test_env_ends_with_the_command(self, shared: Sandbox) -> None:
        shared.exec(["true"], env={"TRANSIENT": "1"}).result(DEADLINE)
        assert "TRANSIENT" not in shared.exec(["env"]).result(DEADLINE).stdout

    def test_variables_of_any_name_reach_the_command(self, session: Session) -> None:
        names = ["d", "directory", "mark", "more", "rest", "size", "status", "stdin", "word"]
        sandbox = session.sandbox(env=dict.fromkeys(names, "sandbox"))
        output = sandbox.exec(["env"]).result(DEADLINE).stdout.splitlines()
        assert {f"{name}=sandbox" for name in names} <= set(output)
        env = dict.fromkeys(names, "command")
        output = sandbox.exec(["env"], env=env).result(DEADLINE).stdout.splitlines()
        assert {f"{name}=command" for name in names} <= set(output)

    def test_env_of_the_sandbox_yields_to_that_of_the_command(self, session: Session) -> None:
        sandbox = session.sandbox(env={"A": "sandbox", "B": "sandbox"})
        result = sandbox.exec(["sh", "-c", "echo $A $B"], env={"B": "command"}).result(DEADLINE)
        assert result.stdout == "sandbox command\n"

    def test_secrets_are_variables_that_no_listing_shows(self, session: Session) -> None:
        secret = token()
        sandbox = session.sandbox(secrets={"API_KEY": secret})
        assert sandbox.exec(["sh", "-c", "echo $API_KEY"]).result(DEADLINE).stdout == f"{secret}\n"
        assert secret not in repr(sandbox.status().result(DEADLINE))
        search = 'printf %s "$PATTERN" | grep -lasF -f - /proc/1/environ /proc/[0-9]*/cmdline'
        found = sandbox.exec(["sh", "-c", search], env={"PATTERN": secret}).result(DEADLINE)
        assert found.stdout == ""
        assert secret not in repr(sandbox.spec) + repr(sandbox)

    def test_path_and_home_are_set(self, shared: Sandbox) -> None:
        result = shared.exec(["sh", "-c", 'test -n "$PATH" && cd "$HOME"']).result(DEADLINE)
        assert result.returncode == 0, result.stderr

    def test_this_machines_environment_does_not_leak(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mark = token()
        monkeypatch.setenv("CONFORMANCE_LEAK", mark)
        assert mark not in session.sandbox().exec(["env"]).result(DEADLINE).stdout

    def test_user_is_honoured_or_refused(self, shared: Sandbox) -> None:
        if self.other_user is None:
            with pytest.raises(ConfigurationError, match="user"):
                shared.exec(["id", "-un"], user="nobody").result(DEADLINE)
        else:
            result = shared.exec(["id", "-un"], user=self.other_user).result(DEADLINE)
            assert result.stdout == f"{self.other_user}\n"

    def test_check_raises_for_a_failure_only(self, shared: Sandbox) -> None:
        assert shared.exec(["true"], check=True).result(DEADLINE).returncode == 0
        with pytest.raises(CommandFailedError) as caught:
            shared.exec(["sh", "-c", "echo so far; exit 4"], check=True).result(DEADLINE)
        assert caught.value.result.returncode == 4
        assert caught.value.result.stdout == "so far\n"

    def test_commands_run_at_the_same_time(self, shared: Sandbox) -> None:
        cats = [shared.exec(["cat"], stdin=True) for _ in range(8)]
        for index, cat in enumerate(cats):  # all are alive only if none waits for another
            assert cat.stdin is not None
            cat.stdin.write(f"{index}\n".encode()).result(DEADLINE)
            assert next(iter(cat.stdout.lines())) == str(index)
        for cat in cats:
            cat.stdin.close()
        assert [cat.result(DEADLINE).returncode for cat in cats] == [0] * 8

    def test_a_command_that_is_silent_for_long_is_unharmed(self, shared: Sandbox) -> None:
        seconds = self.silent_seconds
        command = ["sh", "-c", 'echo before; sleep "$1"; echo after; exit 7', "sh", f"{seconds:g}"]
        result = shared.exec(command).result(seconds + DEADLINE)
        assert (result.returncode, result.stdout) == (7, "before\nafter\n")
        assert result.duration >= seconds - 1

    def test_two_hundred_commands_in_a_row_leave_nothing(self, sandbox: Sandbox) -> None:
        for _ in range(10):
            batch = [sandbox.exec(["true"]) for _ in range(20)]
            assert {process.result(DEADLINE).returncode for process in batch} == {0}

    def test_a_command_cannot_outlive_stop(self, sandbox: Sandbox) -> None:
        process = sandbox.exec(["sh", "-c", "echo ready; sleep 1000"])
        assert next(iter(process.stdout.lines())) == "ready"
        sandbox.stop().result(DEADLINE)
        with pytest.raises(SandboxTerminatedError):
            process.result(DEADLINE)


class TerminalConformance(Conformance):
    """Commands on a terminal."""

    def test_pty_is_a_terminal_of_the_size_asked_for(self, shared: Sandbox) -> None:
        command = ["sh", "-c", "test -t 0 && test -t 1 && stty size"]
        result = shared.exec(command, pty=PtySize(rows=40, cols=100)).result(DEADLINE)
        assert result.stdout.split() == ["40", "100"]

    def test_pty_can_be_resized(self, shared: Sandbox) -> None:
        script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
        process = shared.exec(["sh", "-c", script], pty=True, timeout=DEADLINE)
        lines = iter(process.stdout.lines())
        assert next(lines).strip() == "ready"
        process.stdin.resize(PtySize(rows=11, cols=22))
        assert next(lines, "").strip() == "11 22"

    def test_pty_passes_an_interrupt(self, shared: Sandbox) -> None:
        process = shared.exec(["sh", "-c", "echo ready; exec sleep 1000"], pty=True)
        assert next(iter(process.stdout.lines())).strip() == "ready"
        process.stdin.write(b"\x03").result(DEADLINE)
        assert process.result(DEADLINE).returncode == 130

    def test_without_pty_there_is_no_terminal(self, shared: Sandbox) -> None:
        command = ["sh", "-c", "test -t 0 || test -t 1 || (: </dev/tty) 2>/dev/null"]
        assert shared.exec(command).result(DEADLINE).returncode != 0
