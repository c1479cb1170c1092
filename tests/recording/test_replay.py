"""A recording holds every call, and its replay gives the program the same answers without a backend."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    ReplayMismatchError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxPausedError,
    Session,
)
from sandboxkit.cli import main
from sandboxkit.integrations.swe import SweEnv, load_tasks
from sandboxkit.recording import _file
from sandboxkit.testing import FakeProvider
from tests.local_here import require_local

pytestmark = pytest.mark.anyio
SECRET = "hunter2-of-the-vault"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


# Any: lines of JSON.
def calls(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if "call" in line]


def everything(session: Session, folder: Path) -> list[object]:
    """Use each kind of call, and return all that it returned."""
    seen: list[object] = []
    (folder / "in" / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "in" / "sub" / "name").write_bytes(b"content")
    with session, session.sandbox(env={"A": "1"}, files={"/workspace/seed": b"\xff\0"}) as sandbox:
        script = "echo out; echo err >&2; cat; exit 3"
        ended = sandbox.exec(["sh", "-c", script], stdin=b"\xfe input").result()
        seen += [ended.stdout_bytes, ended.stderr_bytes, ended.returncode, ended.ending]
        large = sandbox.exec(["head", "-c", "200000", "/dev/zero"], output_limit=None).result()
        seen += [large.stdout_bytes, sandbox.id]
        sandbox.write_file("/workspace/a/b", b"x" * 70_000).result()
        seen += [
            sandbox.read_file("/workspace/a/b").result(),
            sandbox.stat("/workspace/a").result(),
        ]
        seen += sandbox.list_dir("/workspace").result()
        sandbox.upload(folder / "in", "/workspace/up").result()
        sandbox.download("/workspace/up", folder / "out").result()
        seen.append((folder / "out" / "sub" / "name").read_bytes())
        (folder / "out" / "sub" / "name").unlink()
        sandbox.remove("/workspace/a", recursive=True).result()
        with pytest.raises(SandboxFileNotFoundError) as missing:
            sandbox.read_file("/workspace/a/b").result()
        with pytest.raises(CommandStartError) as unstarted:
            sandbox.exec(["/no/such/program"]).result()
        with pytest.raises(CommandTimeoutError) as late:
            sandbox.exec(["sh", "-c", "echo before; sleep 600"], timeout=2).result()
        seen += [str(missing.value), missing.value.path, str(unstarted.value)]
        seen += [
            unstarted.value.errno,
            late.value.result.stdout,
            sandbox.logs().exception() is None,
        ]
        seen += [sandbox.workdir().result(), sandbox.usage().result()]
        if session.provider.name == "local":
            terminal = sandbox.terminal()
            shown = [terminal.run("cd /tmp; X=5").result(), terminal.run("echo $X; pwd").result()]
            seen += [(each.returncode, each.output_bytes) for each in shown]
            terminal.close().result()
        sandbox.pause().result()
        with pytest.raises(SandboxPausedError) as paused:
            sandbox.exec(["true"]).result()
        seen.append(str(paused.value))
        sandbox.resume().result()
    return seen


@pytest.mark.parametrize("name", ["fake", "local"])
def test_a_replay_returns_what_every_call_returned(name: str, file: Path, tmp_path: Path) -> None:
    provider = FakeProvider() if name == "fake" else name
    recorded = everything(Session(provider, record=file, tags="run:1"), tmp_path)
    assert everything(Session(replay=file, tags="run:2"), tmp_path) == recorded
    names = {call["call"] for call in calls(file)}
    assert {"create", "exec", "write_file", "read_file", "put_archive", "get_archive"} <= names


def test_a_call_that_was_not_recorded_shows_the_difference(file: Path) -> None:
    with Session(FakeProvider(), record=file) as session, session.sandbox() as sandbox:
        sandbox.exec(["echo", "one"]).result()
    with Session(replay=file) as session, session.sandbox() as sandbox:
        with pytest.raises(ReplayMismatchError) as wrong:
            sandbox.exec(["echo", "two"]).result()
        assert re.search(r"argv recorded: .*one(.|\n)*argv now: .*two", str(wrong.value))
        assert sandbox.exec(["echo", "one"]).result().stdout == "one\n"
        with pytest.raises(ReplayMismatchError, match="end"):
            sandbox.exec(["echo", "one"]).result()
    with Session(replay=file, env={"B": "2"}) as session:
        start = session.sandbox().start()
        with pytest.raises(ReplayMismatchError, match="env"):
            start.result()


def test_input_that_differs_is_refused(file: Path) -> None:
    with Session(FakeProvider(), record=file) as session, session.sandbox() as sandbox:
        sandbox.exec(["cat"], stdin="recorded").result()
    with Session(replay=file) as session:
        altered = session.sandbox().exec(["cat"], stdin="altered")
        with pytest.raises(ReplayMismatchError, match=r"recorded.*now.*altered"):
            altered.result()


def test_secrets_are_in_no_file_of_the_recording(file: Path) -> None:
    def run(session: Session, secret: str) -> str:
        with session, session.sandbox(secrets={"KEY": secret}) as sandbox:
            first = sandbox.exec(["sh", "-c", 'echo "$KEY"; echo "$KEY" >&2; cat'], stdin=secret)
            sandbox.write_file("/workspace/key", f"{'x' * 70_000}{secret}").result()
            sandbox.read_file("/workspace/key").result()
            with pytest.raises(SandboxFileNotFoundError):
                sandbox.read_file(f"/workspace/{secret}").result()
            pieces = 'printf %.5s "$KEY"; sleep 0.5; printf %s "${KEY#?????}"'
            shown = sandbox.exec(["sh", "-c", pieces]).result().stdout
            return first.result().stdout + shown

    run(Session(FakeProvider(), record=file), SECRET)
    kept = [file, *_file.folder_of(file).iterdir()]
    assert len(kept) > 1
    assert not any(SECRET.encode() in each.read_bytes() for each in kept)
    assert all(each.stat().st_mode & 0o077 == 0 for each in kept)
    stars = "*" * len(SECRET)
    assert run(Session(replay=file), SECRET) == f"{stars}\n{stars}{stars}"


async def test_sandboxes_that_run_at_once_are_told_apart(file: Path) -> None:
    async def one(session: Session, number: int) -> str:
        async with session.sandbox() as sandbox:
            first = await sandbox.exec(["echo", str(number)])
            both = await asyncio.gather(
                sandbox.exec(["echo", "left", str(number)]), sandbox.exec(["echo", "right"])
            )
            return first.stdout + "".join(each.stdout for each in both)

    async def run(session: Session, numbers: list[int]) -> list[str]:
        async with session:
            return sorted(await asyncio.gather(*(one(session, number) for number in numbers)))

    recorded = await run(Session(FakeProvider(), record=file), list(range(8)))
    assert await run(Session(replay=file), list(range(8))[::-1]) == recorded


async def agent(session: Session, folder: Path) -> list[str]:
    """An agent run on a SWE task, as the text of all that the agent and the trainer see."""
    steps = [
        ("bash", {"command": "ls; cat notes; false"}),
        ("bash", {"command": "cd /tmp; date +%N; echo right > ~/../workspace/answer"}),
        ("bash", {"command": "head -c 300000 /dev/urandom | base64 | tail -c 3000"}),
        ("nonsense", {}),
        ("submit", {}),
    ]
    async with session, SweEnv(session, load_tasks(folder)) as env:
        seen = [await env.reset("a")]
        seen += [await env.step(name, arguments) for name, arguments in steps]
    return [repr(step) for step in seen]


async def test_an_agent_run_is_replayed_byte_for_byte(file: Path, tmp_path: Path) -> None:
    require_local()
    (tmp_path / "tasks" / "a" / "tests").mkdir(parents=True)
    (tmp_path / "tasks" / "a" / "instruction.md").write_text("write right")
    test = 'test "$(cat /workspace/answer)" = right\n'
    (tmp_path / "tasks" / "a" / "tests" / "test.sh").write_text(test)
    recorded = await agent(Session("local", record=file), tmp_path / "tasks")
    assert "reward=1.0" in recorded[-1]
    os.utime(tmp_path / "tasks" / "a" / "tests" / "test.sh", (1, 1))
    for _ in range(2):
        assert await agent(Session(replay=file), tmp_path / "tasks") == recorded


def test_a_killed_process_leaves_whole_lines(file: Path) -> None:
    program = (
        "import sys; from sandboxkit import Session; session = Session('local', record=sys.argv[1])\n"
        "sandbox = session.sandbox()\n"
        "for n in range(10**9): print(sandbox.exec(['echo', str(n)]).result().stdout, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, file], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(20):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(calls(file)) > 5
    with file.open("ab") as torn:
        torn.write(b'{"call": "exec", "sand')
    with Session(replay=file) as session, session.sandbox() as sandbox:
        assert sandbox.exec(["echo", "0"]).result().stdout == "0\n"


def test_bad_requests_name_the_value_and_the_remedy(file: Path, tmp_path: Path) -> None:
    with Session(FakeProvider(), record=file):
        pass
    (tmp_path / "other").write_text('{"a": 1}\n')
    none = tmp_path / "none"
    # Any: options of sessions, some of them wrong on purpose.
    bad: list[tuple[dict[str, Any], str]] = [
        ({"provider": FakeProvider(), "record": file}, r"run\.jsonl.*exists already"),
        ({"record": file, "replay": file}, "exclude each other"),
        ({"replay": file, "pool": 2}, r"pool=2.*leave pool out"),
        ({"provider": "local", "replay": file}, "'fake', not of 'local'"),
        ({"replay": none}, "No such file"),
        ({"provider": FakeProvider(), "record": none / "run.jsonl"}, "make the folder"),
        ({"replay": tmp_path / "other"}, "is not a recording"),
    ]
    for options, words in bad:
        with pytest.raises(ConfigurationError, match=words):
            Session(**options)


def test_a_sandbox_that_ended_ends_in_the_replay(file: Path) -> None:
    def run(session: Session) -> str:
        with session:
            sandbox = session.sandbox().start().result()
            sandbox.stop().result()
            with pytest.raises(SandboxNotFoundError) as gone:
                session.from_id(str(sandbox.id)).result()
            return str(gone.value)

    assert run(Session(FakeProvider(), record=file)) == run(Session(replay=file))


def test_the_command_line_prints_a_line_for_each_call(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(FakeProvider(), record=file) as session, session.sandbox() as sandbox:
        sandbox.exec(["sh", "-c", "exit 3"]).result()
        assert sandbox.exec(["/no/such"]).exception() is not None
    assert main(["recording", str(file)]) == 0
    shown = capsys.readouterr().out
    assert 'exec ["sh", "-c", "exit 3"]  status 3\n' in shown
    assert "CommandStartError" in shown
    assert main(["recording", str(file.parent)]) == 2


def test_a_recording_ends_at_its_limit_and_the_calls_go_on(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_file, "LIMIT", 20_000)
    with Session(FakeProvider(), record=file) as session, session.sandbox() as sandbox:
        for _ in range(30):
            assert len(sandbox.exec(["head", "-c", "1000", "/dev/zero"]).result().stdout) == 1000
    assert "reached its limit" in caplog.text
    assert file.stat().st_size < 21_000
    with Session(replay=file) as session, session.sandbox() as sandbox:
        sandbox.exec(["head", "-c", "1000", "/dev/zero"]).result()


def test_a_call_that_the_end_of_its_sandbox_ended_ends_in_the_replay(file: Path) -> None:
    def run(session: Session) -> list[str]:
        with session:
            sandbox = session.sandbox().start().result()
            both = [sandbox.exec(["sh", "-c", f"echo {n}; exec sleep 600"]) for n in range(2)]
            for each in both:
                assert next(iter(each.stdout.lines()))
            sandbox.stop().result()
            return [type(each.exception()).__name__ for each in both]

    recorded = run(Session("local", record=file))
    assert run(Session(replay=file)) == recorded


def test_a_recording_and_its_replay_may_listen_in_a_sandbox_and_ask_for_public_ports(
    file: Path,
) -> None:
    def use(session: Session) -> None:
        with session:
            session.sandbox(public_ports=[8000])
            with session.sandbox(network=["web.test"]) as sandbox:
                assert sandbox.stat("/workspace").result().path == "/workspace"

    use(Session(FakeProvider(), record=file))
    use(Session(replay=file))
