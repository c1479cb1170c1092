"""A terminal as one program's stdin and stdout: exact, whatever the image's profiles do."""

import time

import anyio
import pytest

from sandboxkit import Operation, ProviderUnavailableError, Sandbox
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers.daytona import DaytonaProvider
from tests.data_here import beside
from tests.daytona.server import Daytona
from tests.emulators._server import Server
from tests.hosted.streams import ALL_BYTES, ECHO, Use, echoed, everything, exactly
from tests.hosted.vendor import eventually

PROFILES = beside(__file__, "profiles.toml")


@pytest.mark.parametrize("line", PROFILES.values(), ids=PROFILES.keys())
def test_an_images_profile_changes_nothing(server: Server, use: Use, line: str) -> None:
    server.set(profile=line)

    async def work(stream: ProgramStream) -> None:
        assert await exactly(stream, 6) == b"begun\n"
        await echoed(stream, ALL_BYTES * 100)

    use(work, ECHO)


def test_a_profile_of_the_home_is_not_read(server: Server, use: Use, sandbox: Sandbox) -> None:
    script = 'for file in .bashrc .profile .bash_profile; do echo "exit 3" >"$HOME/$file"; done'
    assert sandbox.exec(["sh", "-c", script]).result(90).returncode == 0
    assert use(everything, ("sh", "-c", 'echo "$HOME"')) == b"/etc/daytona\n"
    server.break_connections()  # so that a new terminal is needed
    result = sandbox.exec(["sh", "-c", 'ls -A "$HOME"']).result(90)
    assert result.returncode == 0
    assert ".bash_history" not in result.stdout


def test_a_shell_that_never_answers_times_out(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.state["terminals"]
    server.set(profile="echo busy; sleep 1000")
    started = time.monotonic()
    with pytest.raises(ProviderUnavailableError, match="busy") as raised:
        Operation(provider.box(str(sandbox.id))._run(ECHO)).result(90)
    assert type(raised.value) is ProviderUnavailableError
    assert time.monotonic() - started < Daytona.timeout + 20
    eventually(lambda: server.state["terminals"] == before)


def test_a_cancelled_run_leaves_no_terminal(
    server: Server, provider: DaytonaProvider, sandbox: Sandbox
) -> None:
    before = server.state["terminals"]
    server.set(profile="sleep 1000")

    async def work() -> None:
        with anyio.move_on_after(0.5) as scope:
            await provider.box(str(sandbox.id))._run(ECHO)
        assert scope.cancelled_caught

    Operation(work()).result(90)
    eventually(lambda: server.state["terminals"] == before)


def test_a_program_that_ended_leaves_no_terminal(server: Server, use: Use) -> None:
    before = server.state["terminals"]
    for _ in range(3):
        use(everything, ("true",))
    eventually(lambda: server.state["terminals"] == before)


def test_a_broken_connection_is_not_an_end(server: Server, use: Use) -> None:
    async def work(stream: ProgramStream) -> None:
        assert await exactly(stream, 6) == b"begun\n"
        await anyio.to_thread.run_sync(server.break_connections)
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send(b"more")

    use(work, ECHO)
