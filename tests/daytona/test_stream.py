"""A terminal as one program's stdin and stdout: exact, whatever the image's profiles do."""

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest

from sandboxkit import (
    AuthenticationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxNotFoundError,
    Session,
)
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.conftest import TIMEOUT
from tests.emulators._server import Server

T = TypeVar("T")
PATIENCE = 60.0
ALL = bytes(range(256))
ECHO = ("sh", "-c", "echo begun; exec cat")


@pytest.fixture
def sandbox(session: Session) -> Sandbox:
    """One that runs."""
    return session.sandbox().start().result(PATIENCE)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do it on the loop of the provider."""
    return Operation(work).result(PATIENCE)


def eventually(true: Callable[[], bool]) -> None:
    """Wait until it is."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@asynccontextmanager
async def program(
    provider: DaytonaProvider, sandbox: Sandbox, argv: tuple[str, ...]
) -> AsyncIterator[ProgramStream]:
    """A program, which is closed at the end."""
    stream = await provider._run(str(sandbox.id), argv)
    try:
        yield stream
    finally:
        await stream.aclose()


async def whole(stream: ProgramStream) -> bytes:
    """All that it says up to its end."""
    data = b""
    while True:
        try:
            data += await stream.receive()
        except anyio.EndOfStream:
            return data


async def exactly(stream: ProgramStream, size: int) -> bytes:
    """So many bytes."""
    data = bytearray()
    while len(data) < size:
        data += await stream.receive()
    return bytes(data)


async def echoed(stream: ProgramStream, data: bytes) -> None:
    """It gives back what it takes, all the same."""
    assert await exactly(stream, 6) == b"begun\n"
    received = b""

    async with anyio.create_task_group() as group:
        group.start_soon(stream.send, data)
        received = await exactly(stream, len(data))
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


def test_every_byte_value_passes_both_ways(provider: DaytonaProvider, sandbox: Sandbox) -> None:
    async def work() -> None:
        async with program(provider, sandbox, ECHO) as stream:
            await echoed(stream, ALL * 3 + b"\x1e" + ALL[::-1])
            for byte in ALL:  # alone, too, and at once
                await stream.send(bytes([byte]))
                assert await exactly(stream, 1) == bytes([byte])

    run(work())


def test_eight_megabytes_pass_both_ways_at_once(
    provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    async def work() -> None:
        async with program(provider, sandbox, ECHO) as stream:
            await echoed(stream, os.urandom(8 << 20))

    run(work())


def test_the_end_follows_all_output_and_stderr_is_separate(
    provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    script = "head -c 300000 /dev/zero; seq 10000 >&2; printf last"

    async def work() -> None:
        async with program(provider, sandbox, ("sh", "-c", script)) as stream:
            assert await whole(stream) == bytes(300_000) + b"last"
            assert stream.diagnostics.endswith(b"\n9999\n10000")
            assert len(stream.diagnostics) <= 2000
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"more")

    run(work())


@pytest.mark.parametrize("argv", [("/no/such/program",), ("no-such-program", "a b")])
def test_a_missing_program_says_so(
    provider: DaytonaProvider, sandbox: Sandbox, argv: tuple[str, ...]
) -> None:
    async def work() -> None:
        async with program(provider, sandbox, argv) as stream:
            assert await whole(stream) == b""
            assert b"not found" in stream.diagnostics

    run(work())


def test_arguments_reach_the_program_unchanged(provider: DaytonaProvider, sandbox: Sandbox) -> None:
    argv = ("printf", "%s|", "", "a  b", "it's", '"$HOME"', "new\nline", "\\036", "!!", "é", "*")

    async def work() -> None:
        async with program(provider, sandbox, argv) as stream:
            output = "|".join([*argv[2:], ""]).encode()
            assert await whole(stream) == output

    run(work())


PROFILES = {
    "prints": "echo welcome; printf 'no line end'; seq 5000",
    "prints control characters": r"printf '\033[2J\036\007\036sandboxkit agent\036'",
    "sets the terminal": "stty cs7 istrip ixon ixoff ixany parenb iuclc olcuc min 5 time 9",
    "is silent": "exec 2>/dev/null; stty -echo",
    "defines aliases": (
        "for name in exec sh /bin/sh unset printf stty; do alias $name='echo no'; done; echo() { :; }"
    ),
    "unsets PATH": "unset PATH",
    "sets PATH": "PATH=/nowhere",
    "moves": "mkdir -p /tmp/x; cd /tmp/x; rmdir /tmp/x",
    "is slow": "sleep 0.5",
    "takes what is typed": "read -r line; read -t 0.1 -n 50 more",
    "starts another shell": "exec sh -i",
    "has commands before each prompt": "PROMPT_COMMAND='echo prompt'; PS1='> '; trap 'echo debug' DEBUG",
    "forbids": "set -o noclobber -o nounset; umask 777; readonly HOME",
}


@pytest.mark.parametrize("line", PROFILES.values(), ids=PROFILES.keys())
def test_an_images_profile_changes_nothing(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox, line: str
) -> None:
    server.login_with(line)

    async def work() -> None:
        async with program(provider, sandbox, ECHO) as stream:
            await echoed(stream, ALL * 100)

    run(work())


def test_a_profile_of_the_home_is_not_read(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    script = 'for file in .bashrc .profile .bash_profile; do echo "exit 3" >"$HOME/$file"; done'
    assert sandbox.exec(["sh", "-c", script]).result(PATIENCE).returncode == 0

    async def work() -> bytes:
        async with program(provider, sandbox, ("sh", "-c", 'echo "$HOME"')) as stream:
            return await whole(stream)

    assert run(work()) == b"/etc/daytona\n"
    server.break_connections()  # so that a new terminal is needed
    result = sandbox.exec(["sh", "-c", 'ls -A "$HOME"']).result(PATIENCE)
    assert result.returncode == 0
    assert ".bash_history" not in result.stdout


def test_a_shell_that_never_answers_times_out(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.terminals
    server.login_with("echo busy; sleep 1000")
    started = time.monotonic()
    with pytest.raises(ProviderUnavailableError, match="busy") as raised:
        run(provider._run(str(sandbox.id), ECHO))
    assert type(raised.value) is ProviderUnavailableError
    assert time.monotonic() - started < TIMEOUT + 20
    eventually(lambda: server.terminals == before)


def test_a_cancelled_run_leaves_no_terminal(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.terminals
    server.login_with("sleep 1000")

    async def work() -> None:
        with anyio.move_on_after(0.5) as scope:
            await provider._run(str(sandbox.id), ECHO)
        assert scope.cancelled_caught

    run(work())
    eventually(lambda: server.terminals == before)


def test_a_program_that_ended_leaves_no_terminal(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.terminals

    async def work() -> None:
        for _ in range(3):
            async with program(provider, sandbox, ("true",)) as stream:
                await whole(stream)

    run(work())
    eventually(lambda: server.terminals == before)


def test_a_broken_connection_is_not_an_end(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    async def work() -> None:
        async with program(provider, sandbox, ECHO) as stream:
            assert await exactly(stream, 6) == b"begun\n"
            await anyio.to_thread.run_sync(server.break_connections)
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"more")

    run(work())


def test_closing_ends_waiting_calls(provider: DaytonaProvider, sandbox: Sandbox) -> None:
    async def receive(stream: ProgramStream) -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()

    async def send(stream: ProgramStream) -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(bytes(1 << 30))

    async def work() -> None:
        stream = await provider._run(str(sandbox.id), ("sleep", "1000"))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(receive, stream)
                group.start_soon(send, stream)
                await anyio.sleep(1)
                await anyio.aclose_forcefully(stream)
        await stream.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()

    run(work())


def test_unread_output_blocks_the_writer(provider: DaytonaProvider, sandbox: Sandbox) -> None:
    async def work() -> None:
        async with program(provider, sandbox, ("sleep", "1000")) as stream:
            sent = 0
            with anyio.move_on_after(5):
                while True:
                    await stream.send(bytes(1 << 20))
                    sent += 1
            assert sent < 300

    run(work())


def test_a_missing_sandbox_raises_not_found(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    server.kill_sandboxes()
    with pytest.raises(SandboxNotFoundError):
        run(provider._run(str(sandbox.id), ECHO))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AuthenticationError), (404, ProviderUnavailableError), (502, ProviderUnavailableError)],
)
def test_a_refused_terminal_says_why(
    server: Server,
    provider: DaytonaProvider,
    sandbox: Sandbox,
    status: int,
    kind: type[Exception],
) -> None:
    server.fault("WS /toolbox", "status", status=status)
    with pytest.raises(kind) as raised:
        run(provider._run(str(sandbox.id), ECHO))
    assert type(raised.value) is kind
