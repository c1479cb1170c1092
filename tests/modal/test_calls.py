"""What each thing costs in calls to Modal, and what goes in them."""

import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from sandboxkit import Sandbox, Session
from sandboxkit.providers.modal import ModalProvider
from tests.modal.server import ModalServer


@pytest.fixture
def sandbox(server: ModalServer, session: Session) -> Sandbox:
    """A sandbox that has run a command, so that everything is connected; nothing counted yet."""
    sandbox = session.sandbox().start().result(30)
    sandbox.exec(["true"]).result(30)
    server.ask("calls")
    return sandbox


def written(server: ModalServer) -> int:
    """The number of writes to the agent since the last call; nothing else may have been requested."""
    made: dict[str, int] = server.ask("calls")
    # The agent's stderr is read from one second after its start on.
    assert made.pop("TaskExecStdioRead", 0) <= 1
    assert set(made) == {"TaskExecStdinWrite"}
    return made["TaskExecStdinWrite"]


# One more each, because a loaded machine may ask its agent whether it lives.


def test_a_command_makes_one_request(server: ModalServer, sandbox: Sandbox) -> None:
    sandbox.exec(["echo", "hello"]).result(30)
    assert written(server) <= 2


def test_writing_or_reading_a_file_makes_one_request(server: ModalServer, sandbox: Sandbox) -> None:
    sandbox.write_file("/workspace/file", b"content").result(30)
    assert written(server) <= 2
    assert sandbox.read_file("/workspace/file").result(30) == b"content"
    assert written(server) <= 2


def test_much_input_is_few_calls(server: ModalServer, sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "cat >/dev/null"], stdin=b"x" * (4 << 20)).result(30)
    assert written(server) < 40


def test_a_start_makes_one_sandbox_and_one_program(
    server: ModalServer, session: Session, sandbox: Sandbox
) -> None:
    session.sandbox().start().result(30)
    made: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    # What its shell says on stderr is asked for a second later: it is no part of the start.
    while made["TaskExecStdioRead"] < 2 and time.monotonic() < deadline:
        made.update(server.ask("calls"))
        time.sleep(0.05)
    assert made.pop("TaskExecStdinWrite") < 6  # the agent is two pieces, and it is greeted
    assert made == {"SandboxCreateV2": 1, "TaskExecStart": 1, "TaskExecStdioRead": 2}


def test_a_second_client_finds_the_agent(server: ModalServer, sandbox: Sandbox) -> None:
    with Session(ModalProvider()) as other:
        found = other.from_id(str(sandbox.id)).result(30)
        server.ask("calls")
        assert found.exec(["echo", "hello"]).result(30).stdout == "hello\n"
        made = server.ask("calls")
        assert made.pop("TaskExecStdinWrite") < 4
        assert made["TaskExecStart"] == 1


def test_a_stop_ends_the_sandbox_at_once(server: ModalServer, sandbox: Sandbox) -> None:
    sandbox.stop().result(30)
    made = server.ask("calls")
    assert made["SandboxTerminateV2"] == made["SandboxWaitV2"] == 1
    assert sum(made.values()) < 8


def test_secrets_and_variables_are_in_no_argument_and_not_with_modal(
    server: ModalServer, session: Session
) -> None:
    sandbox = session.sandbox(secrets={"KEY": "s3cret"}, env={"OTHER": "0f-spec"})
    script = "cat /proc/1/environ /proc/[0-9]*/cmdline | tr '\\0' ' '; echo $KEY $OTHER $MORE"
    process = sandbox.exec(["sh", "-c", script], env={"MORE": "als0secret"})
    output = process.result(30).stdout
    assert output.endswith("s3cret 0f-spec als0secret\n")
    for word in ("s3cret", "0f-spec", "als0secret"):
        assert output.count(word) == 1


def test_arguments_beyond_what_modal_takes_arrive(sandbox: Sandbox) -> None:
    arguments = [str(number) * 1000 for number in range(90)] + ["", "a\nb", "'$x`\\"]
    code = "import sys; sys.stdout.write('\\0'.join(sys.argv[1:]))"
    result = sandbox.exec(["python3", "-c", code, *arguments]).result(30)
    assert result.stdout.split("\0") == arguments


def test_such_arguments_leave_the_input_to_the_command(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "cat", "sh", "x" * 100_000], stdin=b"in").result(30)
    assert result.stdout == "in"


def test_text_that_is_no_unicode_arrives(sandbox: Sandbox) -> None:
    odd = b"a\xff\xfeb".decode("utf-8", "surrogateescape")
    result = sandbox.exec(["sh", "-c", 'printf %s "$1$V"', "sh", odd], env={"V": odd}).result(30)
    assert result.stdout_bytes == b"a\xff\xfeb" * 2


def test_a_gpu_gives_a_sandbox_of_the_first_generation(
    server: ModalServer, session: Session
) -> None:
    sandbox = session.sandbox(gpu="T4", secrets={"KEY": "1"}, tags={"a": "b"})
    assert sandbox.exec(["sh", "-c", "echo $KEY"]).result(30).stdout == "1\n"
    assert re.fullmatch(r"sb-[0-9A-Za-z]{22}", str(sandbox.id))
    (info,) = session.list({"a": "b"}).result(30)
    assert (info.id, info.tags["a"]) == (sandbox.id, "b")
    assert session.from_id(str(sandbox.id)).result(30).id == sandbox.id
    sandbox.stop().result(30)
    assert server.running() == []


_PROGRAM = """
import os, sys
from sandboxkit import Session
session = Session("modal")
sandbox = session.sandbox()
print(sandbox.exec(["echo", "parent"]).result(30).stdout, end="", flush=True)
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        with Session("modal") as own:
            print(own.run(["echo", "child"]).result(30).stdout, end="", flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    print(sandbox.exec(["echo", "parent"]).result(30).stdout, end="", flush=True)
elif sys.argv[1] == "running":
    process = sandbox.exec(["sh", "-c", "echo ready; sleep 1000"])
    next(iter(process.stdout.lines()))
"""


@pytest.mark.parametrize(
    ("way", "printed"),
    [("exit", "parent\n"), ("running", "parent\n"), ("fork", "parent\nchild\nparent\n")],
)
def test_a_program_ends_and_leaves_nothing(server: ModalServer, way: str, printed: str) -> None:
    command = [sys.executable, "-W", "error", "-c", _PROGRAM, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    assert server.running() == []
