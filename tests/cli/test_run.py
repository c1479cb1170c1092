"""`sandboxkit run` and `exec`: status, streams and limits of one command."""

import signal
import subprocess
import time

import pytest

from tests.cli.conftest import Cli, following


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, cli: Cli, tag: str) -> None:
    script = ("sh", "-c", "echo up; sleep 60")
    with following("run", "--tag", tag, *script, stderr=subprocess.PIPE) as process:
        assert next(process.stdout) == "up\n"
        process.send_signal(number)
        assert process.wait(timeout=120) == 128 + number
        assert process.stderr.read() == ""
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_an_interrupted_exec_kills_its_command_alone(cli: Cli, detached: str) -> None:
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
