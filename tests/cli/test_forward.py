"""`forward`: a port of another process's sandbox, until Ctrl-C or the sandbox's end."""

import contextlib
import random
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Sandbox
from sandboxkit.testing.conformance.ports import _ECHO, running
from tests.cli.conftest import Cli, following

SECONDS = 120.0


def forwarded(process: "subprocess.Popen[str]") -> int:
    """The port of this machine that the command prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.match(r"http://127\.0\.0\.1:(\d+) forwards to port \d+ of local-", line)
    assert found is not None, line
    return int(found[1])


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """Listen on a port below those that the kernel gives to whoever asks for any: it is free afterwards."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with contextlib.ExitStack() as stack:
        while True:
            port = random.randrange(lowest // 2, lowest)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                break
        yield port


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


def test_it_ends_with_the_sandbox_and_takes_the_port_that_is_asked_for(
    cli: Cli, detached: str
) -> None:
    with taken_port() as here:
        refused = cli("forward", detached, f"8000:{here}")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "in use" in refused.stderr
    with following("forward", detached, f"8000:{here}") as process:
        assert forwarded(process) == here
        assert cli("stop", detached).returncode == 0
        assert process.wait(SECONDS) == 0
