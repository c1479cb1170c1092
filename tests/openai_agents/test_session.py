"""What the SDK's session does: commands, terminals, files, and whose fault a failure is."""

from pathlib import Path

import pytest
from agents.sandbox import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.errors import (
    ConfigurationError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
)
from agents.sandbox.session import SandboxSession
from agents.sandbox.types import User

from sandboxkit import SandboxTerminatedError, Session
from sandboxkit.integrations.openai_agents import SandboxkitClient, SandboxkitSession
from tests.components import require_program
from tests.docker_here import require_docker
from tests.openai_agents.conftest import data, outcome

pytestmark = pytest.mark.anyio


async def test_commands_have_status_folder_and_variables(sandbox: SandboxSession) -> None:
    script = 'echo "$GIVEN, $FROM" && pwd && echo oops >&2 && exit 3'
    expected = (3, "by the manifest, the session\n/workspace\n", "oops\n")
    assert outcome(await sandbox.exec(script)) == expected
    assert outcome(await sandbox.exec("echo", "a b", shell=False)) == (0, "a b\n", "")
    status, _, stderr = outcome(await sandbox.exec("no-such-program", shell=False))
    assert (status, "no-such-program" in stderr) == (127, True)
    assert outcome(await sandbox.exec("a\0b"))[0] == 127
    with pytest.raises(ExecTimeoutError) as caught:
        await sandbox.exec("sleep 600", timeout=0.2)
    assert caught.value.timeout_s == 0.2
    with pytest.raises(ConfigurationError, match="only user"):
        await sandbox.exec("whoami", user="nobody")


async def test_output_beyond_the_limit_says_so(sandbox: SandboxSession) -> None:
    result = await sandbox.exec("yes | head -c 11000000")
    assert len(result.stdout) == 10 << 20
    assert b"its middle was dropped" in result.stderr


async def test_a_dead_sandbox_is_a_transport_error_not_a_status(sandbox: SandboxSession) -> None:
    inner = sandbox._inner
    assert isinstance(inner, SandboxkitSession)
    started = await sandbox.pty_exec_start("sleep 600", yield_time_s=0)
    assert started.process_id is not None
    assert await sandbox.running()
    await inner.sandbox.stop()
    with pytest.raises(ExecTransportError) as caught:
        await sandbox.exec("true")
    assert isinstance(caught.value.cause, SandboxTerminatedError)
    with pytest.raises(ExecTransportError):
        await sandbox.pty_exec_start("true")
    with pytest.raises(ExecTransportError):
        await sandbox.pty_write_stdin(session_id=started.process_id, chars="")
    with pytest.raises(WorkspaceArchiveReadError):
        await sandbox.persist_workspace()
    assert not await sandbox.running()


async def typed(sandbox: SandboxSession, number: int, chars: str, until: bytes) -> None:
    output = b""
    while until not in output:
        update = await sandbox.pty_write_stdin(session_id=number, chars=chars, yield_time_s=0)
        output, chars = output + update.output, "\n"


async def test_a_terminal_continues_between_calls(sandbox: SandboxSession) -> None:
    argv = ("python3", "-i", "-q")
    update = await sandbox.pty_exec_start(*argv, shell=False, tty=True, yield_time_s=0)
    assert update.exit_code is None
    number = update.process_id
    assert number is not None
    await typed(sandbox, number, "x = 6\nx * 7\n", until=b"42\r\n")
    await typed(sandbox, number, "import time; print(1 / 2); time.sleep(600)\n", until=b"0.5\r\n")
    await typed(sandbox, number, "\x03", until=b"KeyboardInterrupt")
    update = await sandbox.pty_write_stdin(session_id=number, chars="exit(5)\n", yield_time_s=30)
    assert (update.exit_code, update.process_id) == (5, None)
    with pytest.raises(PtySessionNotFoundError):
        await sandbox.pty_write_stdin(session_id=number, chars="")


async def test_a_command_in_the_background_keeps_its_newest_output(sandbox: SandboxSession) -> None:
    script = "until [ -e go ]; do sleep 0.05; done; yes | head -c 3000000; printf '\\nready\\n'"
    script += "; touch did"
    update = await sandbox.pty_exec_start(script, yield_time_s=0)
    number = update.process_id
    assert number is not None
    await sandbox.exec("touch go; until [ -e did ]; do sleep 0.05; done")
    update = await sandbox.pty_write_stdin(session_id=number, chars="", yield_time_s=30)
    assert update.exit_code == 0
    assert b"bytes dropped here" in update.output[:100]
    assert update.output.endswith(b"\nready\n")
    assert len(update.output) < (1 << 20) + 100


async def test_a_command_without_terminal_has_no_input_and_dies(sandbox: SandboxSession) -> None:
    require_program("pgrep")
    update = await sandbox.pty_exec_start("sleep 600 & exec sleep 600", yield_time_s=0)
    number = update.process_id
    assert number is not None
    with pytest.raises(RuntimeError, match="stdin is not available for this process"):
        await sandbox.pty_write_stdin(session_id=number, chars="x")
    await sandbox.pty_terminate_all()
    assert outcome(await sandbox.exec("pgrep", "-x", "sleep", shell=False))[0] == 1
    missing = await sandbox.pty_exec_start("no-such-program", shell=False)
    assert (missing.exit_code, b"no-such-program" in missing.output) == (127, True)


async def test_files_are_those_of_the_workspace(sandbox: SandboxSession) -> None:
    path = Path("deep/in/notes.txt")
    await sandbox.write(path, data("notes"))
    assert (await sandbox.read(path)).read() == b"notes"
    assert await sandbox.read_bounded(path, max_bytes=3) == b"not"
    assert [entry.path for entry in await sandbox.ls("deep/in")] == ["/workspace/deep/in/notes.txt"]
    await sandbox.mv(path, "moved.txt")
    await sandbox.rm("deep", recursive=True)
    with pytest.raises(WorkspaceReadNotFoundError):
        await sandbox.read(path)
    with pytest.raises(WorkspaceReadNotFoundError):
        await sandbox.read_bounded(path, max_bytes=1)
    with pytest.raises(WorkspaceArchiveReadError):
        await sandbox.read(Path("."))
    await sandbox.exec("ln -s /etc/passwd out")
    for outside in ("../etc/passwd", "/etc/passwd", "out"):
        with pytest.raises(InvalidManifestPathError):
            await sandbox.read(Path(outside))
    with pytest.raises(ExposedPortUnavailableError):
        await sandbox.resolve_exposed_port(8000)


async def test_another_user_has_commands_and_files_of_its_own() -> None:
    require_docker()
    async with Session("docker") as session, await SandboxkitClient(session).create() as sandbox:
        await sandbox.exec("chmod 777 .")
        assert outcome(await sandbox.exec("whoami", user="nobody")) == (0, "nobody\n", "")
        await sandbox.write(Path("theirs"), data("x"), user=User(name="nobody"))
        assert outcome(await sandbox.exec("stat -c %U theirs"))[1] == "nobody\n"
        await sandbox.exec("chmod 700 .")
        with pytest.raises(WorkspaceArchiveReadError):
            await sandbox.read(Path("theirs"), user="nobody")
        with pytest.raises(WorkspaceArchiveWriteError):
            await sandbox.write(Path("theirs"), data("y"), user="nobody")


async def test_a_broken_archive_is_refused_with_what_tar_says(sandbox: SandboxSession) -> None:
    with pytest.raises(WorkspaceArchiveWriteError) as caught:
        await sandbox.hydrate_workspace(data("no archive" * 100_000))
    assert "tar" in str(caught.value.context["stderr"])
