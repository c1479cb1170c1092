"""Runs of a SandboxAgent whose model is scripted, and what a session does; nothing is traced or goes anywhere."""

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from agents import RunConfig, Runner, RunState, set_tracing_disabled
from agents.items import ToolCallOutputItem, TResponseOutputItem
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig, errors
from agents.sandbox.capabilities import Shell
from agents.sandbox.capabilities.shell import ShellToolSet
from agents.sandbox.entries import Dir, File
from agents.sandbox.manifest import Environment
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import NoopSnapshotSpec
from agents.sandbox.types import ExecResult, User
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from sandboxkit import SandboxTerminatedError, Session
from sandboxkit.integrations import openai_agents
from sandboxkit.integrations.openai_agents import SandboxkitClient, SandboxkitClientOptions
from tests.adapters_document import use
from tests.components import require_program
from tests.docker_here import require_docker


@pytest.fixture(autouse=True)
def _untraced() -> None:
    set_tracing_disabled(True)


@pytest.fixture
async def session(anyio_backend: str) -> AsyncIterator[Session]:
    """A Session that must have no sandbox left when its test is over."""
    async with Session("local", tags="test:agents", env={"FROM": "the session"}) as session:
        yield session
        with anyio.fail_after(120):
            while await living(session):
                await anyio.sleep(0.05)


@pytest.fixture
async def sandbox(session: Session) -> AsyncIterator[SandboxSession]:
    client = SandboxkitClient(session)
    manifest = Manifest(environment=Environment(value={"GIVEN": "by the manifest"}))
    async with await client.create(manifest=manifest) as sandbox:
        yield sandbox


async def living(session: Session) -> list[str]:
    infos = await session.list()
    return [info.id for info in infos if info.tags.get("sandboxkit.session") == session.id]


def outcome(result: ExecResult) -> tuple[int, str, str]:
    return result.exit_code, result.stdout.decode(), result.stderr.decode()


def data(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode())


pytestmark = pytest.mark.anyio

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCRIPT = "python3 sum.py; echo $A; cat made.txt; exit 9"
PATCH = (Path(__file__).parent / "change.patch").read_text()


def shell(command: str, number: int) -> TResponseOutputItem:
    return function_call("exec_command", {"cmd": command}, call_id=f"call-{number}")


def patch(text: str, number: int) -> TResponseOutputItem:
    kind: Any = {"name": "apply_patch", "type": "custom_tool_call"}
    return ResponseCustomToolCall(call_id=f"call-{number}", input=text, **kind)


def agent(*steps: Any, manifest: Manifest | None = None) -> SandboxAgent[None]:
    return SandboxAgent(name="coder", model=ScriptedModel(steps), default_manifest=manifest)


def config(client: SandboxkitClient, **how: Any) -> RunConfig:
    how.setdefault("snapshot", NoopSnapshotSpec())
    return RunConfig(sandbox=SandboxRunConfig(client=client, **how), tracing_disabled=True)


@pytest.mark.parametrize("provider", ["local", "docker"])
async def test_a_run_edits_and_executes_files_and_leaves_no_sandbox(provider: str) -> None:
    if provider == "docker":
        require_docker()
    seen: list[str] = []

    def told(call: ModelCall) -> list[TResponseOutputItem]:
        seen.extend(str(item["output"]) for item in call.input if "output" in item)
        return [assistant_message("It says 42.")]

    async with Session(provider) as session:
        coder = agent(
            [patch(PATCH, 1)],
            [shell(f"echo {DOT} | base64 -d > dot.png; {SCRIPT}", 2)],
            [function_call("view_image", {"path": "dot.png"}, call_id="call-3")],
            ModelStep.respond(told),
            manifest=Manifest(entries={"sum.py": File(content=b"print(1)\n")}),
        )
        how = config(SandboxkitClient(session), options={"env": {"A": "1"}, "memory_mb": 256})
        result = await Runner.run(coder, "Go.", run_config=how)
        assert await living(session) == []
    assert result.final_output == "It says 42."
    assert len([item for item in result.new_items if isinstance(item, ToolCallOutputItem)]) == 3
    assert "Updated sum.py" in seen[0]
    assert "Process exited with code 9" in seen[1]
    assert DOT in seen[2]
    assert seen[1].endswith("Output:\n42\n1\nby the patch")


async def test_an_interrupted_run_goes_on_with_its_files(session: Session, tmp_path: Path) -> None:
    async def removes(context: object, arguments: dict[str, Any], call_id: str) -> bool:
        return "rm" in arguments["cmd"]

    def ask(tools: ShellToolSet) -> None:
        tools.exec_command.needs_approval = removes

    steps = [[shell("echo kept > notes", 1)], [shell("cat notes && rm notes", 2)]]
    model = ScriptedModel([*steps, [assistant_message("Removed.")]])
    coder = SandboxAgent(name="coder", model=model, capabilities=[Shell(configure_tools=ask)])
    kept = LocalSnapshotSpec(base_path=tmp_path)
    how, again = (config(SandboxkitClient(session), snapshot=kept) for _ in range(2))
    first = await Runner.run(coder, "Go.", run_config=how)
    assert await living(session) == []
    state = await RunState.from_string(coder, first.to_state().to_string())
    (question,) = state.get_interruptions()
    state.approve(question)
    second = await Runner.run(coder, state, run_config=again)
    assert second.final_output == "Removed."
    outputs = [item.output for item in second.new_items if isinstance(item, ToolCallOutputItem)]
    assert outputs[-1].endswith("code 0\nOutput:\nkept\n")


async def test_a_cancelled_run_leaves_no_sandbox(session: Session) -> None:
    asked = asyncio.Event()

    def hang(call: ModelCall) -> list[TResponseOutputItem]:
        asked.set()
        return [shell("sleep 600", 1)]

    how, model = config(SandboxkitClient(session)), agent(ModelStep.respond(hang))
    run = asyncio.create_task(Runner.run(model, "Go.", run_config=how))
    await asked.wait()
    assert len(await living(session)) == 1
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run  # the fixture looks for what it left


@pytest.mark.parametrize("root", ["/tmp/a", "/tmp/b"])
async def test_commands_start_in_the_root_or_workdir(session: Session, root: str) -> None:
    client = SandboxkitClient(session)
    given: Any = {"options": SandboxkitClientOptions(workdir="/tmp/a")}
    given |= {} if root == "/tmp/a" else {"manifest": Manifest(root=root)}
    async with await client.create(**given) as sandbox:
        assert outcome(await sandbox.exec("pwd")) == (0, f"{root}\n", "")
    await client.delete(sandbox)


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing(session: Session) -> None:
    client = SandboxkitClient(session)
    with pytest.raises(errors.WorkspaceStartError, match="/no/such/image") as caught:
        await client.create(options=SandboxkitClientOptions(image="/no/such/image"))
    with pytest.raises(Exception, match=r"start_timeout=0\.001 s"):
        await client.create(options=SandboxkitClientOptions(start_timeout=0.001))
    assert (caught.value.retryable, caught.value.context["provider"]) == (False, "local")
    grant = {"path": "/data", "host_path": "/srv/data"}
    granting = Manifest(extra_path_grants=(grant,))  # type: ignore[arg-type]  # coerced
    with pytest.raises(errors.ConfigurationError, match="/data is a folder of this machine"):
        await client.create(manifest=granting)
    with pytest.raises(errors.ConfigurationError, match="gpu"):
        await client.create(options=SandboxkitClientOptions(gpu="1"))
    with pytest.raises(ValueError, match="cpus"):
        SandboxkitClientOptions(cpus=-1)
    task = asyncio.create_task(client.create())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    unmakeable = Manifest(users=[{"name": "no such name"}])  # type: ignore[list-item]  # coerced
    with pytest.raises(Exception, match=r"useradd|not found"):
        async with await client.create(manifest=unmakeable):
            pass


@pytest.mark.parametrize("provider", ["local", "docker"])
async def test_a_workspace_continues_in_another_sandbox(provider: str, tmp_path: Path) -> None:
    if provider == "docker":
        require_docker()
    secret = Dir(children={"token": File(content=b"fresh")}, ephemeral=True)
    manifest = Manifest(root="/job/here", entries={"a[b]": secret, "sum.py": File(content=b"1")})
    async with Session(provider) as session:
        client = SandboxkitClient(session)
        snapshot = LocalSnapshotSpec(base_path=tmp_path)
        async with await client.create(manifest=manifest, snapshot=snapshot) as first:
            await first.write(Path("sum.py"), data("print(6 * 7)"))
            script = "chmod 755 sum.py; ln sum.py hard; ln -s /usr/bin/env soft; echo old > a\\[b\\]/token"
            assert outcome(await first.exec(script)) == (0, "", "")
        with tarfile.open(tmp_path / f"{first.state.snapshot.id}.tar") as archive:
            names = {"./a[b]", "./sum.py", "./a[b]/token"} & set(archive.getnames())
        assert names == {"./sum.py"}
        stored = json.loads(json.dumps(client.serialize_session_state(first.state)))
        assert await living(session) == []
    async with Session(provider) as session:
        client = SandboxkitClient(session)
        second = await client.resume(client.deserialize_session_state(stored))
        async with second:
            script = "pwd; stat -c %a sum.py; python3 hard; readlink soft; cat a*/token"
            status, found, _ = outcome(await second.exec(script))
            assert (status, found) == (0, "/job/here\n755\n42\n/usr/bin/env\nfresh")
        assert _id(second) != _id(first)
        assert await living(session) == []


async def test_a_session_that_was_not_deleted_is_reached(session: Session, tmp_path: Path) -> None:
    client = SandboxkitClient(session)
    first = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await first.start()
    await first.write(Path("kept"), data("there"))
    stored = client.serialize_session_state(first.state)
    again = SandboxkitClient(session)  # as another process has it
    async with await again.resume(again.deserialize_session_state(stored)) as second:
        assert (await second.read(Path("kept"))).read() == b"there"
        assert _id(second) == _id(first)
    assert not await first.running()
    await client.delete(first)


async def test_a_failed_resume_keeps_the_snapshot(session: Session, tmp_path: Path) -> None:
    client = SandboxkitClient(session)
    async with await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path)) as first:
        await first.write(Path("kept"), data("there"))
    (snapshot,) = tmp_path.iterdir()
    snapshot.write_bytes(b"broken" * 1000)
    second = await client.resume(first.state)
    with pytest.raises(Exception, match="failed to write archive"):
        await second.start()
    await second.aclose()
    assert snapshot.read_bytes() == b"broken" * 1000


async def test_a_workspace_that_cannot_be_kept_stays(session: Session, tmp_path: Path) -> None:
    client = SandboxkitClient(session, max_archive_bytes=100_000)
    first = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await first.start()
    await first.exec("head -c 200000 /dev/zero > large")
    with pytest.raises(errors.WorkspaceArchiveReadError) as caught:
        await first.aclose()
    assert caught.value.context["reason"] == "archive_too_large"
    assert outcome(await first.exec("stat -c %s large")) == (0, "200000\n", "")
    await client.delete(first)
    assert await living(session) == []
    assert list(tmp_path.iterdir()) == []


async def test_the_documents_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # where the SDK keeps its snapshots
    scripted = agent([shell("echo done > made", 1)], [assistant_message("ok")])
    names: dict[str, Any] = {"agent": scripted}
    exec(use("OpenAI Agents SDK").replace('"docker"', '"local"'), names)
    await names["main"]()
    (snapshot,) = tmp_path.rglob("*.tar")
    with tarfile.open(snapshot) as archive:
        assert "./made" in archive.getnames()


def _id(session: SandboxSession) -> str:
    assert isinstance(session.state, openai_agents.SandboxkitSessionState)
    return session.state.sandbox_id


async def test_commands_have_status_folder_and_variables(sandbox: SandboxSession) -> None:
    script = 'echo "$GIVEN, $FROM" && pwd && echo oops >&2 && exit 3'
    expected = (3, "by the manifest, the session\n/workspace\n", "oops\n")
    assert outcome(await sandbox.exec(script)) == expected
    assert outcome(await sandbox.exec("echo", "a b", shell=False)) == (0, "a b\n", "")
    status, _, stderr = outcome(await sandbox.exec("no-such-program", shell=False))
    assert (status, "no-such-program" in stderr) == (127, True)
    assert outcome(await sandbox.exec("a\0b"))[0] == 127
    with pytest.raises(errors.ExecTimeoutError) as caught:
        await sandbox.exec("sleep 600", timeout=0.2)
    assert caught.value.timeout_s == 0.2
    with pytest.raises(errors.ConfigurationError, match="only user"):
        await sandbox.exec("whoami", user="nobody")


async def test_output_beyond_the_limit_says_so(sandbox: SandboxSession) -> None:
    result = await sandbox.exec("yes | head -c 11000000")
    assert len(result.stdout) == 10 << 20
    assert b"its middle was dropped" in result.stderr


async def test_a_dead_sandbox_is_a_transport_error_not_a_status(sandbox: SandboxSession) -> None:
    inner = sandbox._inner
    assert isinstance(inner, openai_agents.SandboxkitSession)
    number = (await sandbox.pty_exec_start("sleep 600", yield_time_s=0)).process_id or 0
    assert await sandbox.running()
    await inner.sandbox.stop()
    with pytest.raises(errors.ExecTransportError) as caught:
        await sandbox.exec("true")
    assert isinstance(caught.value.cause, SandboxTerminatedError)
    with pytest.raises(errors.ExecTransportError):
        await sandbox.pty_exec_start("true")
    with pytest.raises(errors.ExecTransportError):
        await sandbox.pty_write_stdin(session_id=number, chars="")
    with pytest.raises(errors.WorkspaceArchiveReadError):
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
    number = update.process_id or 0
    await typed(sandbox, number, "x = 6\nx * 7\n", until=b"42\r\n")
    await typed(sandbox, number, "import time; print(1 / 2); time.sleep(600)\n", until=b"0.5\r\n")
    await typed(sandbox, number, "\x03", until=b"KeyboardInterrupt")
    update = await sandbox.pty_write_stdin(session_id=number, chars="exit(5)\n", yield_time_s=30)
    assert (update.exit_code, update.process_id) == (5, None)
    with pytest.raises(errors.PtySessionNotFoundError):
        await sandbox.pty_write_stdin(session_id=number, chars="")


async def test_a_command_in_the_background_keeps_its_newest_output(sandbox: SandboxSession) -> None:
    script = "until [ -e go ]; do sleep 0.05; done; yes | head -c 3000000; printf '\\nready\\n'"
    script += "; touch did"
    number = (await sandbox.pty_exec_start(script, yield_time_s=0)).process_id or 0
    await sandbox.exec("touch go; until [ -e did ]; do sleep 0.05; done")
    update = await sandbox.pty_write_stdin(session_id=number, chars="", yield_time_s=30)
    assert update.exit_code == 0
    assert b"bytes dropped here" in update.output[:100]
    assert update.output.endswith(b"\nready\n")
    assert len(update.output) < (1 << 20) + 100


async def test_a_command_without_terminal_has_no_input_and_dies(sandbox: SandboxSession) -> None:
    require_program("pgrep")
    update = await sandbox.pty_exec_start("sleep 600 & exec sleep 600", yield_time_s=0)
    number = update.process_id or 0
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
    for missing in (sandbox.read(path), sandbox.read_bounded(path, max_bytes=1)):
        with pytest.raises(errors.WorkspaceReadNotFoundError):
            await missing
    with pytest.raises(errors.WorkspaceArchiveReadError):
        await sandbox.read(Path("."))
    await sandbox.exec("ln -s /etc/passwd out")
    for outside in ("../etc/passwd", "/etc/passwd", "out"):
        with pytest.raises(errors.InvalidManifestPathError):
            await sandbox.read(Path(outside))
    with pytest.raises(errors.ExposedPortUnavailableError):
        await sandbox.resolve_exposed_port(8000)


async def test_another_user_has_commands_and_files_of_its_own() -> None:
    require_docker()
    async with Session("docker") as session, await SandboxkitClient(session).create() as sandbox:
        await sandbox.exec("chmod 777 .")
        assert outcome(await sandbox.exec("whoami", user="nobody")) == (0, "nobody\n", "")
        await sandbox.write(Path("theirs"), data("x"), user=User(name="nobody"))
        assert outcome(await sandbox.exec("stat -c %U theirs"))[1] == "nobody\n"
        await sandbox.exec("chmod 700 .")
        with pytest.raises(errors.WorkspaceArchiveReadError):
            await sandbox.read(Path("theirs"), user="nobody")
        with pytest.raises(errors.WorkspaceArchiveWriteError):
            await sandbox.write(Path("theirs"), data("y"), user="nobody")


async def test_a_broken_archive_is_refused_with_what_tar_says(sandbox: SandboxSession) -> None:
    with pytest.raises(errors.WorkspaceArchiveWriteError) as caught:
        await sandbox.hydrate_workspace(data("no archive" * 100_000))
    assert "tar" in str(caught.value.context["stderr"])
