"""Real sandboxes of the local provider, in a state folder of each test's own."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session
from sandboxkit.provider import StreamName
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local._launch import Launched
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.types import Command, Exit, SandboxSpec

PROGRAMS: dict[str, str] = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())


class Run:
    """A command's outcome."""

    exit: Exit

    def __init__(self) -> None:
        self.stdout = self.stderr = ""
        self.heard = anyio.Event()

    @property
    def status(self) -> int:
        return self.exit.status

    async def output(self, stream: StreamName, data: bytes) -> None:
        text = data.decode(errors="replace")
        if stream == "stdout":
            self.stdout += text
        else:
            self.stderr += text
        self.heard.set()


class Box:
    """One sandbox, with a short way to run commands in it."""

    def __init__(self, inner: LocalBox) -> None:
        self.inner, self.id, self.provider = inner, inner.id, inner.backend

    async def run(self, *argv: str, run: Run | None = None, user: str | None = None) -> Run:
        run = run or Run()
        with anyio.fail_after(60):
            run.exit = await self.inner.exec(Command(argv, user=user), run.output)
        return run

    async def sh(self, script: str) -> Run:
        return await self.run("sh", "-c", script)

    async def python(self, code: str) -> Run:
        return await self.run("python3", "-c", code)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder, in which nothing may be left at the end."""
    folder = tmp_path / "state"
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(folder))
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "cache"))
    os.chmod(tmp_path, 0o755)
    return folder


@pytest.fixture
async def provider(state: Path, anyio_backend: str) -> AsyncIterator[LocalProvider]:
    provider = LocalProvider()
    yield provider
    async for info in provider.list({}):
        await provider.box(info.id).delete()
    await provider.aclose()
    assert not state.exists() or os.listdir(state) == []


@pytest.fixture
async def session(provider: LocalProvider) -> AsyncIterator[Session]:
    """A session, after which no snapshot is left."""
    async with Session(provider, tags=("snapshots",)) as session:
        yield session
    async for info in provider.list_snapshots({}):
        await provider.delete_snapshot(info.id)
    store = provider.state.path / "snapshots"
    assert not store.exists() or os.listdir(store) == []
    if store.exists():
        store.rmdir()


@pytest.fixture
async def box(provider: LocalProvider) -> Box:
    return await make(provider)


async def make(provider: LocalProvider, **spec: object) -> Box:
    """A sandbox with this spec."""
    with anyio.fail_after(60):
        return Box(await provider.create(SandboxSpec(**spec)))  # type: ignore[arg-type]  # the tests' shorthand


@contextmanager
def mounted(state: Path, options: str, kind: str = "tmpfs") -> Iterator[None]:
    """Make the state folder a file system of its own meanwhile."""
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", kind, "-o", options, "none", state], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)
        state.rmdir()


def client(
    code: str, *arguments: str, prefix: Sequence[str] = (), given: str = PROGRAMS["client"]
) -> "subprocess.Popen[str]":
    """Another process that runs `code` with the `provider` that it is `given`."""
    program = given + "".join(f"    {line}\n" for line in code.strip("\n").splitlines())
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", program + "anyio.run(main)\n", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


async def said(process: "subprocess.Popen[str]", line: str = "") -> str:
    """The next line of such a process, after it was given one."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        print(line, file=process.stdin, flush=True)
    return str(await anyio.to_thread.run_sync(process.stdout.readline)).strip()


async def ended(process: "subprocess.Popen[str]", number: int = 0, line: str = "") -> str:
    """The rest that such a process says, once a signal or its last line of input has ended it."""
    if number:
        process.send_signal(number)
    rest, _ = await anyio.to_thread.run_sync(process.communicate, line or None)
    return str(rest).strip()


def launched(provider: LocalProvider, sandbox_id: str) -> Launched:
    """The processes of a sandbox that runs."""
    found = provider.box(sandbox_id).launched
    assert found is not None
    return found


def groups_of(folder: Path) -> list[Path]:
    """The control groups that a sandbox's folder names."""
    meta = json.loads((folder / "meta.json").read_text())
    return [Path(group) for group in meta["cgroups"]]


async def until_gone(paths: list[Path], within: float = 60.0) -> None:
    """Wait for other processes to remove these."""
    with anyio.fail_after(within):
        while any(path.exists() for path in paths):  # another process's doing
            await anyio.sleep(0.01)
