"""`sandboxkit run` and `exec`: status, streams and limits of one command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Open, environment


def test_run_passes_output_and_status_through(cli: Cli) -> None:
    result = cli("run", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_run_passes_stdin_on_only_when_asked(cli: Cli) -> None:
    assert cli("run", "-i", "tr", "a-z", "A-Z", stdin="hello").stdout == "HELLO"
    assert cli("run", "cat", stdin="hello").stdout == ""


def test_output_in_a_pipe_is_exact_bytes(cli: Cli) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)))"
    result = subprocess.run(
        [sys.executable, "-m", "sandboxkit", "run", "--", "python3", "-c", code],
        capture_output=True,
        check=False,
        env=environment(),
        timeout=120,
    )
    assert result.stdout == bytes(range(256))


def test_large_output_arrives_complete(cli: Cli) -> None:
    result = cli("run", "sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x")
    assert len(result.stdout) == 20_000_000


def test_a_timeout_ends_the_command_with_124(cli: Cli) -> None:
    for seconds in (1, 5, 25):  # a busy machine may not even print in the first
        result = cli("run", "--timeout", f"{seconds}s", "sh", "-c", "echo before; sleep 60")
        assert result.returncode == 124
        if result.stdout:
            break
    assert result.stdout == "before\n"
    assert "timeout" in result.stderr


def test_a_missing_program_is_127_as_in_a_shell(cli: Cli) -> None:
    assert cli("run", "--", "no-such-program").returncode == 127


def test_env_workdir_and_secrets_reach_the_command(cli: Cli) -> None:
    result = cli(
        *(
            "run",
            "-e",
            "A=1",
            "-e",
            "B",
            "--secret",
            "C",
            "-w",
            "/tmp",
            "--",
            "sh",
            "-c",
            "echo $A$B$C $PWD",
        ),
        env={"B": "2", "C": "3"},
    )
    assert result.stdout == "123 /tmp\n"


def test_there_is_no_network_unless_asked(cli: Cli) -> None:
    code = "import socket; print(socket.if_nameindex())"
    assert cli("run", "python3", "-c", code).stdout in ("[(1, 'lo')]\n", "[]\n")


def test_a_reader_that_goes_away_ends_the_command_quietly(cli: Cli) -> None:
    line = f"{sys.executable} -m sandboxkit run yes | head -n 1"
    result = subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        check=False,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert (result.stdout, result.stderr) == ("y\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, cli: Cli, tag: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandboxkit", "run", "--tag", tag, "sh", "-c", "echo up; sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    assert process.wait(timeout=120) == 128 + number
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_output_on_a_terminal_is_neutralised(terminal: Open) -> None:
    window = terminal("run", "printf", r"a\033[2Jb\342\200\256c\n")
    assert window.exit_code() == 0
    assert window.screen.decode() == "a␛[2Jb\ufffdc\r\n"


def test_exec_runs_in_the_same_sandbox(cli: Cli, detached: str) -> None:
    assert cli("exec", detached, "--", "sh", "-c", "echo kept > note; exit 4").returncode == 4
    assert cli("exec", detached, "cat", "note").stdout == "kept\n"
    assert (
        cli("exec", "-i", "-w", "/tmp", "-e", "A=1", detached, "sh", stdin="echo $A $PWD").stdout
        == "1 /tmp\n"
    )


def test_an_interrupted_exec_kills_its_command_and_keeps_the_sandbox(
    cli: Cli, detached: str
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sandboxkit",
            "exec",
            detached,
            "sh",
            "-c",
            "echo $$ > pid; echo up; sleep 600",
        ],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    process.stdout.close()
    script = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done; echo dead"
    assert cli("exec", "--timeout", "60s", detached, "sh", "-c", script).stdout == "dead\n"


def test_a_killed_client_takes_its_sandbox_with_it(cli: Cli, tag: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandboxkit", "run", "--tag", tag, "sh", "-c", "echo up; sleep 60"],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while (
        cli("ls", "-q", "--tag", tag, "--state", "running").stdout and time.monotonic() < deadline
    ):
        pass
    cli("cleanup", "--tag", tag)
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_files_of_ours_are_not_in_the_sandbox(cli: Cli, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.chmod(secret, 0o644)
    assert cli("run", "cat", str(secret)).returncode != 0


def test_allow_lets_a_command_reach_the_named_servers_alone(cli: Cli) -> None:
    code = (
        "import urllib.error, urllib.request\n"
        "for name in ('localhost.test', 'other.test'):\n"
        "    try:\n"
        "        urllib.request.urlopen(f'http://{name}/')\n"
        "    except urllib.error.HTTPError as error:\n"
        "        print(error.code, error.read().decode(), end='')\n"
    )
    result = cli("run", "--allow", "localhost.test", "--", "python3", "-c", code)
    allowed, other = result.stdout.splitlines()
    assert allowed.startswith("502 sandboxkit: localhost.test cannot be resolved: ")
    assert other == "403 sandboxkit: no rule allows other.test:80"


def test_allow_is_refused_where_it_cannot_work(cli: Cli) -> None:
    both = cli("run", "--allow", "pypi.org", "--network", "internet", "true")
    assert (both.returncode, both.stderr) == (
        2,
        "sandboxkit: error: --network internet does not go with --allow; give one\n",
    )
    detached = cli("run", "-d", "--allow", "pypi.org")
    assert detached.returncode == 2
    assert "--allow does not go with --detach" in detached.stderr
    native = cli("run", "--allow", "pypi.org", "--native", "-p", "local", "true")
    assert native.returncode == 2
    assert "'local' cannot honour Egress(native=True)" in native.stderr
    assert "--native needs --allow NAME" in cli("run", "--native", "true").stderr
