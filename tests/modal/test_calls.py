"""What each thing costs in calls to Modal, and what goes in them."""

import re
import subprocess
import sys

import pytest

from sandboxkit import Sandbox, Session
from tests.emulators.modal.client import ModalEmulator
from tests.hosted.kept_shells import settle


@pytest.fixture
def sandbox(emulator: ModalEmulator, session: Session) -> Sandbox:
    """A sandbox that has run a command, so that everything is connected; nothing counted yet."""
    sandbox = session.sandbox().start().result(30)
    sandbox.exec(["true"]).result(30)
    settle(sandbox)
    emulator.ask("calls")
    return sandbox


# The SDK itself makes these of one `Sandbox.exec` and the reading of its outputs.
ONE_EXEC = {"TaskExecStart": 1, "TaskExecStdioRead": 2}


def calls(emulator: ModalEmulator) -> dict[str, int]:
    """Without the question how a command ended, which only those are asked that take a while."""
    made: dict[str, int] = emulator.ask("calls")
    return {name: count for name, count in made.items() if name != "TaskExecWait"}


def test_a_command_is_one_call(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    sandbox.exec(["echo", "hello"]).result(30)
    assert emulator.ask("calls") == {"TaskExecStdinWrite": 1}


def test_the_first_command_starts_a_shell(emulator: ModalEmulator, session: Session) -> None:
    sandbox = session.sandbox().start().result(30)
    emulator.ask("calls")
    sandbox.exec(["echo", "hello"]).result(30)
    made = emulator.ask("calls")
    made.pop("TaskGetCommandRouterAccess", None)  # where the sandbox is reached
    assert made == {**ONE_EXEC, "TaskExecStdinWrite": 1}


def test_a_command_with_input_is_one_exec(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    sandbox.exec(["cat"], stdin=b"in").result(30)
    assert calls(emulator) == {**ONE_EXEC, "TaskExecStdinWrite": 2}


def test_a_longer_one_is_asked_how_it_ended(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    sandbox.exec(["sleep", "1"], stdin=b"").result(30)
    assert emulator.ask("calls")["TaskExecWait"] == 1


def test_a_kill_is_one_more_and_the_end_of_the_shell(
    emulator: ModalEmulator, sandbox: Sandbox
) -> None:
    process = sandbox.exec(["sh", "-c", "echo ready; sleep 1000"])
    assert next(iter(process.stdout.lines())) == "ready"
    process.kill()
    process.result(30)
    assert calls(emulator) == {"TaskExecStart": 1, "TaskExecStdinWrite": 2}


def test_input_is_one_call_for_each_mebibyte_and_one_for_its_end(
    emulator: ModalEmulator, sandbox: Sandbox
) -> None:
    sandbox.exec(["cat"], stdin=b"x" * (3 << 20)).result(30)
    assert calls(emulator) == {**ONE_EXEC, "TaskExecStdinWrite": 4}


def test_a_start_is_one_call_once_connected(
    emulator: ModalEmulator, session: Session, sandbox: Sandbox
) -> None:
    session.sandbox().start().result(30)
    assert emulator.ask("calls") == {"SandboxCreateV2": 1}


def test_a_stop_is_two_calls(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    sandbox.stop().result(30)
    assert emulator.ask("calls") == {"SandboxTerminateV2": 1, "SandboxWaitV2": 1}


def test_a_file_is_one_exec(emulator: ModalEmulator, sandbox: Sandbox) -> None:
    sandbox.write_file("/workspace/file", b"content").result(30)
    assert calls(emulator) == {**ONE_EXEC, "TaskExecStdinWrite": 2}
    assert sandbox.read_file("/workspace/file").result(30) == b"content"
    assert calls(emulator) == {"TaskExecStdinWrite": 1}


def test_secrets_and_variables_are_in_no_argument(
    emulator: ModalEmulator, session: Session
) -> None:
    sandbox = session.sandbox(secrets={"KEY": "s3cret"}).start().result(30)
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo $KEY $OTHER"
    said = sandbox.exec(["sh", "-c", script], env={"OTHER": "als0secret"}).result(30).stdout
    assert said.endswith("s3cret als0secret\n")
    assert said.count("s3cret") == 1
    assert said.count("als0secret") == 1


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
    emulator: ModalEmulator, session: Session
) -> None:
    sandbox = session.sandbox(gpu="T4", secrets={"KEY": "1"}, tags={"a": "b"})
    assert sandbox.exec(["sh", "-c", "echo $KEY"]).result(30).stdout == "1\n"
    assert re.fullmatch(r"sb-[0-9A-Za-z]{22}", str(sandbox.id))
    (info,) = session.list({"a": "b"}).result(30)
    assert (info.id, info.tags["a"]) == (sandbox.id, "b")
    assert session.from_id(str(sandbox.id)).result(30).id == sandbox.id
    sandbox.stop().result(30)
    assert emulator.running() == []


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
def test_a_program_ends_and_leaves_nothing(emulator: ModalEmulator, way: str, printed: str) -> None:
    command = [sys.executable, "-W", "error", "-c", _PROGRAM, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    assert emulator.running() == []
