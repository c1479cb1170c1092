"""`profile="strict"`: what it is where we are root in a machine, and what is said where we are not."""

from collections.abc import Iterator

import pytest

from sandboxkit import CapacityError, Sandbox, SandboxStartError, Session
from tests.e2b.server import E2BServer

SYSTEM = (
    "/",
    "/etc",
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/lib",
    "/code",
    "/home/user",
    "/root",
)


@pytest.fixture(scope="module")
def sandbox(rooted: E2BServer) -> Iterator[Sandbox]:
    with Session("e2b") as session:
        yield session.sandbox(profile="strict").start().result(60)


def test_commands_run_as_a_user_without_files(sandbox: Sandbox) -> None:
    assert sandbox.exec(["id", "-u"]).result(30).stdout == "65534\n"
    script = "grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs):' /proc/self/status | cut -f2"
    output = sandbox.exec(["sh", "-c", script]).result(30).stdout.split()
    assert output == ["0" * 16, "0" * 16, "0" * 16, "1"]


def test_nothing_of_the_system_can_be_written(sandbox: Sandbox) -> None:
    script = 'for folder; do touch "$folder/x" 2>/dev/null && echo "$folder"; done; true'
    assert sandbox.exec(["sh", "-c", script, "sh", *SYSTEM]).result(30).stdout == ""
    find = r"find / -xdev \( -type f -o -type d ! -perm -1000 \) -writable -print 2>/dev/null"
    found = sandbox.exec(["sh", "-c", find]).result(60).stdout.splitlines()
    assert set(found) <= {"/workspace"}


def test_the_agent_cannot_be_replaced_or_ended(sandbox: Sandbox) -> None:
    script = """
    agent=$(echo /usr/local/bin/sandboxkit-agent-*)
    mv "$agent" /tmp/x 2>/dev/null && echo moved
    kill -9 $(pidof sandboxkit-agent) 2>/dev/null && echo killed
    true
    """
    assert sandbox.exec(["sh", "-c", script]).result(30).stdout == ""
    assert sandbox.exec(["true"]).result(30).returncode == 0


def test_workdir_and_tmp_belong_to_the_user(sandbox: Sandbox) -> None:
    sandbox.write_file("/workspace/x", b"1").result(30)
    assert sandbox.exec(["sh", "-c", "cat /workspace/x && touch /tmp/y"]).result(30).stdout == "1"


def test_without_root_there_is_no_such_profile(server: E2BServer, session: Session) -> None:
    with pytest.raises(SandboxStartError, match="needs root") as raised:
        session.sandbox(profile="strict").start().result(30)
    assert not isinstance(raised.value, CapacityError)
    assert server.alive == []
