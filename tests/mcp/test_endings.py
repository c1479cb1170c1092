"""However a client or its server ends, the sandbox does, too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit import Sandbox
from sandboxkit.testing.conformance._base import until
from tests.docker_here import require_docker
from tests.mcp.conftest import COMMAND, by_hand, call, send
from tests.process_list import processes

_SECONDS = 120.0

CLIENT = (Path(__file__).parent / "client.txt").read_text()


def gone(tag: str, provider: str) -> None:
    until(lambda: not Sandbox.list(tag, provider=provider).result(), "nothing is left", _SECONDS)


def test_a_client_that_is_killed_in_the_middle_of_a_call(tag: str) -> None:
    require_docker()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, *COMMAND, "-p", "docker", "--tag", tag],
        stdout=subprocess.PIPE,
        text=True,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        [server] = [each.pid for each in processes() if each.parent == client.pid]
        assert len(Sandbox.list(tag, provider="docker").result()) == 1
        client.kill()
    gone(tag, "docker")
    until(lambda: not os.path.exists(f"/proc/{server}"), "its server is gone", _SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_signalled_during_a_call(number: signal.Signals, tag: str) -> None:
    with by_hand("-p", "local", "--tag", tag) as server:
        call(server, "true")
        sleep = {"name": "exec", "arguments": {"command": "sleep 600"}}
        send(server, {"id": 9, "method": "tools/call", "params": sleep})
        assert len(Sandbox.list(tag, provider="local").result()) == 1
        server.send_signal(number)
        code = server.wait(_SECONDS)
        if number is signal.SIGKILL:
            gone(tag, "local")  # by its lifeline, which nobody had to tell
        else:
            assert code == 128 + number
            assert Sandbox.list(tag, provider="local").result() == []


def test_a_client_that_closes_its_end_and_reads_no_answer(tag: str) -> None:
    with by_hand("-p", "local", "--tag", tag) as server:
        call(server, "true")
        for number in range(20):  # more than the pipe takes
            much = {"name": "exec", "arguments": {"command": "seq 10000"}}
            send(server, {"id": number, "method": "tools/call", "params": much})
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(_SECONDS) == 0
        assert Sandbox.list(tag, provider="local").result() == []


def test_options_are_checked_before_a_client_is_served() -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND, "-p", "local", "--memory-mb", "0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "memory_mb" in done.stderr
    assert done.stdout == ""
