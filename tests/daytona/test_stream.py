"""A terminal as one program's stdin and stdout: exact, whatever the image's profiles do."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from sandboxkit import (
    Operation,
    ProviderUnavailableError,
    Sandbox,
    Session,
)
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.server import Daytona
from tests.emulators._server import Server
from tests.hosted.streams import ALL_BYTES, ECHO, echoed, everything, exactly
from tests.hosted.vendor import eventually


@pytest.fixture
def sandbox(session: Session) -> Sandbox:
    """One that runs."""
    return session.sandbox().start().result(90)


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
            assert await exactly(stream, 6) == b"begun\n"
            await echoed(stream, ALL_BYTES * 100)

    Operation(work()).result(90)


def test_a_profile_of_the_home_is_not_read(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    script = 'for file in .bashrc .profile .bash_profile; do echo "exit 3" >"$HOME/$file"; done'
    assert sandbox.exec(["sh", "-c", script]).result(90).returncode == 0

    async def work() -> bytes:
        async with program(provider, sandbox, ("sh", "-c", 'echo "$HOME"')) as stream:
            return await everything(stream)

    assert Operation(work()).result(90) == b"/etc/daytona\n"
    server.break_connections()  # so that a new terminal is needed
    result = sandbox.exec(["sh", "-c", 'ls -A "$HOME"']).result(90)
    assert result.returncode == 0
    assert ".bash_history" not in result.stdout


def test_a_shell_that_never_answers_times_out(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.terminals
    server.login_with("echo busy; sleep 1000")
    started = time.monotonic()
    with pytest.raises(ProviderUnavailableError, match="busy") as raised:
        Operation(provider._run(str(sandbox.id), ECHO)).result(90)
    assert type(raised.value) is ProviderUnavailableError
    assert time.monotonic() - started < Daytona.timeout + 20
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

    Operation(work()).result(90)
    eventually(lambda: server.terminals == before)


def test_a_program_that_ended_leaves_no_terminal(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.terminals

    async def work() -> None:
        for _ in range(3):
            async with program(provider, sandbox, ("true",)) as stream:
                await everything(stream)

    Operation(work()).result(90)
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

    Operation(work()).result(90)
