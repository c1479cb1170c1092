"""Whole runs of a SandboxAgent whose model is scripted with the SDK's own test helpers."""

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner, RunState, UserError
from agents.items import ToolCallOutputItem, TResponseOutputItem
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.capabilities.shell import ShellToolSet
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ConfigurationError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceStartError,
)
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import NoopSnapshotSpec
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from sandboxkit import Session
from sandboxkit.integrations.openai_agents import (
    SandboxkitClient,
    SandboxkitClientOptions,
    SandboxkitSessionState,
)
from tests.adapters_document import use
from tests.docker_here import require_docker
from tests.openai_agents.conftest import data, living, outcome

pytestmark = pytest.mark.anyio

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCRIPT = "python3 sum.py; echo $A; cat made.txt; exit 9"
PATCH = (Path(__file__).parent / "change.patch").read_text()


def shell(command: str, number: int) -> TResponseOutputItem:
    return function_call("exec_command", {"cmd": command}, call_id=f"call-{number}")


def patch(text: str, number: int) -> TResponseOutputItem:
    return ResponseCustomToolCall(
        call_id=f"call-{number}", input=text, name="apply_patch", type="custom_tool_call"
    )


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
    coder = SandboxAgent(
        name="coder",
        model=ScriptedModel([*steps, [assistant_message("Removed.")]]),
        capabilities=[Shell(configure_tools=ask)],
    )
    how = config(SandboxkitClient(session), snapshot=LocalSnapshotSpec(base_path=tmp_path))
    first = await Runner.run(coder, "Go.", run_config=how)
    assert await living(session) == []
    state = await RunState.from_string(coder, first.to_state().to_string())
    (question,) = state.get_interruptions()
    state.approve(question)
    how = config(SandboxkitClient(session), snapshot=LocalSnapshotSpec(base_path=tmp_path))
    second = await Runner.run(coder, state, run_config=how)
    assert second.final_output == "Removed."
    outputs = [item.output for item in second.new_items if isinstance(item, ToolCallOutputItem)]
    assert outputs[-1].endswith("code 0\nOutput:\nkept\n")


async def test_an_outage_ends_the_run_and_is_not_shown_to_the_model(session: Session) -> None:
    client = SandboxkitClient(session)

    async def outage(call: ModelCall) -> list[TResponseOutputItem]:
        (sandbox_id,) = await living(session)
        await (await session.from_id(sandbox_id)).stop()
        return [shell("true", 1)]

    model = agent(ModelStep.respond(outage), [assistant_message("never")])
    with pytest.raises(UserError, match="no sandbox") as caught:
        await Runner.run(model, "Go.", run_config=config(client))
    assert isinstance(caught.value.__cause__, ExecTransportError)


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


@pytest.mark.parametrize("manifest", [None, Manifest(root="/tmp/b")])
async def test_commands_start_in_the_manifests_root_else_in_the_workdir_of_the_options(
    session: Session, manifest: Manifest | None
) -> None:
    client = SandboxkitClient(session)
    options = SandboxkitClientOptions(workdir="/tmp/a")
    async with await client.create(manifest=manifest, options=options) as sandbox:
        directory = manifest.root if manifest else "/tmp/a"
        assert outcome(await sandbox.exec("pwd")) == (0, f"{directory}\n", "")
    await client.delete(sandbox)


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing(session: Session) -> None:
    client = SandboxkitClient(session)
    with pytest.raises(WorkspaceStartError, match="/no/such/image") as caught:
        await client.create(options=SandboxkitClientOptions(image="/no/such/image"))
    with pytest.raises(Exception, match=r"start_timeout=0\.001 s"):
        await client.create(options=SandboxkitClientOptions(start_timeout=0.001))
    assert (caught.value.retryable, caught.value.context["provider"]) == (False, "local")
    grant = {"path": "/data", "host_path": "/srv/data"}
    granting = Manifest(extra_path_grants=(grant,))  # type: ignore[arg-type]  # coerced
    with pytest.raises(ConfigurationError, match="/data is a folder of this machine"):
        await client.create(manifest=granting)
    with pytest.raises(ConfigurationError, match="gpu"):
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
    with pytest.raises(WorkspaceArchiveReadError) as caught:
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
    assert isinstance(session.state, SandboxkitSessionState)
    return session.state.sandbox_id
