"""What each thing costs in calls to Modal, and what goes in them."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sandboxkit import Sandbox, Session
from tests.emulators._server import Server
from tests.hosted.vendor import eventually


def written(server: Server) -> int:
    """The number of writes to the agent since the last call; nothing else may have been requested."""
    made = Counter(server.requests)
    server.clear()
    # The agent's stderr is read from one second after its start on.
    assert made.pop("TaskExecStdioRead", 0) <= 1
    assert set(made) == {"TaskExecStdinWrite"}
    return made["TaskExecStdinWrite"]


# One more each, because a loaded machine may ask its agent whether it lives.


def test_a_command_and_a_file_make_one_request_each(server: Server, sandbox: Sandbox) -> None:
    sandbox.exec(["true"]).result(30)
    server.clear()
    sandbox.exec(["echo", "hello"]).result(30)
    assert written(server) <= 2
    sandbox.write_file("/workspace/file", b"content").result(30)
    assert written(server) <= 2
    assert sandbox.read_file("/workspace/file").result(30) == b"content"
    assert written(server) <= 2


def test_much_input_is_few_calls(server: Server, sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "cat >/dev/null"], stdin=b"x" * (4 << 20)).result(30)
    assert written(server) < 40


def test_a_start_makes_one_sandbox_and_one_program(
    server: Server, session: Session, sandbox: Sandbox
) -> None:
    session.sandbox().start().result(30)
    # What its shell says on stderr is asked for a second later: it is no part of the start.
    eventually(lambda: server.requests.count("TaskExecStdioRead") >= 2)
    made = Counter(server.requests)
    assert made.pop("TaskExecStdinWrite") < 6  # the agent is two pieces, and it is greeted
    assert made == {"SandboxCreateV2": 1, "TaskExecStart": 1, "TaskExecStdioRead": 2}


def test_a_second_client_finds_the_agent(server: Server, sandbox: Sandbox, other: Session) -> None:
    found = other.from_id(str(sandbox.id)).result(30)
    server.clear()
    assert found.exec(["echo", "hello"]).result(30).stdout == "hello\n"
    made = Counter(server.requests)
    assert made.pop("TaskExecStdinWrite") < 4
    assert made["TaskExecStart"] == 1


def test_a_stop_ends_the_sandbox_at_once(server: Server, sandbox: Sandbox) -> None:
    sandbox.stop().result(30)
    made = Counter(server.requests)
    assert made["SandboxTerminateV2"] == made["SandboxWaitV2"] == 1
    assert sum(made.values()) < 8


def test_secrets_and_variables_are_in_no_argument_and_not_with_modal(
    server: Server, session: Session
) -> None:
    sandbox = session.sandbox(secrets={"KEY": "s3cret"}, env={"OTHER": "0f-spec"})
    script = "cat /proc/1/environ /proc/[0-9]*/cmdline | tr '\\0' ' '; echo $KEY $OTHER $MORE"
    process = sandbox.exec(["sh", "-c", script], env={"MORE": "als0secret"})
    output = process.result(30).stdout
    assert output.endswith("s3cret 0f-spec als0secret\n")
    for word in ("s3cret", "0f-spec", "als0secret"):
        assert output.count(word) == 1


def test_arguments_beyond_what_modal_takes_arrive_and_leave_the_input_to_the_command(
    sandbox: Sandbox,
) -> None:
    arguments = [str(number) * 1000 for number in range(90)] + ["", "a\nb", "'$x`\\"]
    code = "import sys; print(sys.stdin.read(), end='\\0'.join(['', *sys.argv[1:]]))"
    result = sandbox.exec(["python3", "-c", code, *arguments], stdin=b"in").result(30)
    assert result.stdout.split("\0") == ["in", *arguments]


def test_text_that_is_no_unicode_arrives(sandbox: Sandbox) -> None:
    odd = b"a\xff\xfeb".decode("utf-8", "surrogateescape")
    result = sandbox.exec(["sh", "-c", 'printf %s "$1$V"', "sh", odd], env={"V": odd}).result(30)
    assert result.stdout_bytes == b"a\xff\xfeb" * 2


def test_a_gpu_gives_a_sandbox_of_the_first_generation(server: Server, session: Session) -> None:
    sandbox = session.sandbox(gpu="T4", secrets={"KEY": "1"}, tags={"a": "b"})
    assert sandbox.exec(["sh", "-c", "echo $KEY"]).result(30).stdout == "1\n"
    assert re.fullmatch(r"sb-[0-9A-Za-z]{22}", str(sandbox.id))
    (info,) = session.list({"a": "b"}).result(30)
    assert (info.id, info.tags["a"]) == (sandbox.id, "b")
    assert session.from_id(str(sandbox.id)).result(30).id == sandbox.id
    sandbox.stop().result(30)
    assert server.alive == []


PROGRAM = Path(__file__).with_name("program.txt").read_text()


@pytest.mark.parametrize(
    ("way", "printed"),
    [("exit", "parent\n"), ("running", "parent\n"), ("fork", "parent\nchild\nparent\n")],
)
def test_a_program_ends_and_leaves_nothing(server: Server, way: str, printed: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    assert server.alive == []
