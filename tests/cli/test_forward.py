"""`forward`: a port of another process's sandbox, until Ctrl-C or the sandbox's end."""

import re
import signal
import socket
from typing import Any

import pytest

from sandboxkit import Sandbox
from sandboxkit.testing.conformance.ports import _ECHO, running
from tests.cli.conftest import Cli, following
from tests.grpo.stand_ins import free_port

SECONDS = 120.0


def forwarded(process: Any) -> int:
    """The port of this machine that the command prints."""
    line = process.stdout.readline()
    found = re.match(r"http://127\.0\.0\.1:(\d+) forwards to port \d+ of local-", line)
    assert found is not None, line
    return int(found[1])


def test_a_port_is_forwarded_until_ctrl_c(detached: str) -> None:
    sandbox = Sandbox.from_id(detached, provider="local").result(SECONDS)
    with running(sandbox, _ECHO) as port, following("forward", detached, str(port)) as process:
        here = forwarded(process)
        with socket.create_connection(("127.0.0.1", here), SECONDS) as client:
            client.sendall(b"hello")
            assert client.recv(5, socket.MSG_WAITALL) == b"hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", here), SECONDS)


def test_it_ends_with_the_sandbox_and_takes_the_port_asked_for(cli: Cli, detached: str) -> None:
    here = free_port()
    with socket.create_server(("127.0.0.1", here)):
        refused = cli("forward", detached, f"8000:{here}")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "in use" in refused.stderr
    with following("forward", detached, f"8000:{here}") as process:
        assert forwarded(process) == here
        assert cli("stop", detached).returncode == 0
        assert process.wait(SECONDS) == 0
