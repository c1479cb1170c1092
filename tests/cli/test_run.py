"""`sandboxkit run` and `exec`: status, streams and limits of one command."""

import signal
import subprocess
import time

import pytest

from tests.cli.conftest import Cli, Open, following


def test_a_timeout_ends_the_command_with_124(cli: Cli) -> None:
    for seconds in (1, 5, 25):  # a busy machine may not even print in the first
        result = cli("run", "--timeout", f"{seconds}s", "sh", "-c", "echo before; sleep 60")
        assert result.returncode == 124
        if result.stdout:
            break
    assert result.stdout == "before\n"
    assert "timeout" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, cli: Cli, tag: str) -> None:
    script = ("sh", "-c", "echo up; sleep 60")
    with following("run", "--tag", tag, *script, stderr=subprocess.PIPE) as process:
        assert next(process.stdout) == "up\n"
        process.send_signal(number)
        assert process.wait(timeout=120) == 128 + number
        assert process.stderr.read() == ""
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_output_on_a_terminal_is_neutralised(terminal: Open) -> None:
    window = terminal("run", "printf", r"a\033[2Jb\342\200\256c\n")
    assert window.exit_code() == 0
    assert window.screen.decode() == "a␛[2Jb\ufffdc\r\n"


def test_an_interrupted_exec_kills_its_command_and_keeps_the_sandbox(
    cli: Cli, detached: str
) -> None:
    with following("exec", detached, "sh", "-c", "echo $$ > pid; echo up; sleep 600") as process:
        assert next(process.stdout) == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    script = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done; echo dead"
    assert cli("exec", "--timeout", "60s", detached, "sh", "-c", script).stdout == "dead\n"


def test_a_killed_client_takes_its_sandbox_with_it(cli: Cli, tag: str) -> None:
    with following("run", "--tag", tag, "sh", "-c", "echo up; sleep 60") as process:
        assert next(process.stdout) == "up\n"
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    state = ("--state", "running")
    while cli("ls", "-q", "--tag", tag, *state).stdout and time.monotonic() < deadline:
        pass
    cli("cleanup", "--tag", tag)
    assert cli("ls", "-q", "--tag", tag).stdout == ""
