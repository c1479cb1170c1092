"""A real agent as PID 1 of a process namespace of this machine, without a sandbox around it."""

import asyncio
import functools
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.providers._agent.launch import agent_flags, config_of
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import Command, Exit, SandboxInfo, SandboxSpec
from tests import process_list
from tests.components import lack, reason, require_root

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
if os.getuid() != 0:
    NAMESPACE.append("--map-root-user")
AGENT = binary.path().name
"""Also what a reaper, which is a clone of the agent, is called."""


@functools.cache
def namespace_problem() -> str:
    """Return why this machine starts nothing in a namespace of processes; an empty string if it does."""
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True)
    remedy = "allow user namespaces, or run the tests as root of the machine"
    return reason("namespaces of processes", remedy, done.stderr) if done.returncode else ""


class NamespaceProvider(AgentProvider[Instance]):
    """The smallest agent provider: a process namespace, and a socket for further clients."""

    name = "namespace"

    def __init__(self, folder: Path) -> None:
        super().__init__(Instance)
        self.folder = folder
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def create(self, spec: SandboxSpec) -> str:
        sandbox_id = f"ns{len(self.processes)}"
        ours, theirs = socket.socketpair()
        with socket.socket(socket.AF_UNIX) as listener, theirs:
            listener.bind(str(self.folder / sandbox_id))
            listener.listen()
            flags = agent_flags(spec, listen_fd=listener.fileno())
            self.processes[sandbox_id] = await asyncio.create_subprocess_exec(
                *NAMESPACE,
                str(binary.path()),
                *flags,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                pass_fds=[listener.fileno()],
            )
        stream = UnixStream(ours)
        try:
            await self._attach(sandbox_id, stream, config_of(spec))
        except BaseException:
            await self.delete(sandbox_id)
            raise
        return sandbox_id

    def _agent_pid(self, instance: Instance) -> int | None:
        process = self.processes.get(instance.id)
        if process is None or process.returncode is not None:
            return None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return next(map(int, children.read_text().split()), None)

    async def _connect(self, sandbox_id: str) -> ByteStream:
        try:
            return await UnixStream.connect(str(self.folder / sandbox_id))
        except OSError as error:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r}") from error

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        none: tuple[SandboxInfo, ...] = ()
        for info in none:
            yield info

    async def delete(self, sandbox_id: str) -> None:
        await self._forget(sandbox_id)
        process = self.processes.get(sandbox_id)
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


class Run:
    """A command's whole outcome."""

    def __init__(self) -> None:
        self.stdout = b""
        self.stderr = b""
        self.status = -1
        self.exit = Exit(-1)
        self.started = anyio.Event()

    async def output(self, stream: str, data: bytes) -> None:
        if stream == "stdout":
            self.stdout += data
        else:
            self.stderr += data
        self.started.set()


class Box:
    """One sandbox of the provider, with a shorter way to call it."""

    def __init__(self, provider: NamespaceProvider, sandbox_id: str, workdir: Path) -> None:
        self.provider = provider
        self.id = sandbox_id
        self.workdir = workdir

    async def exec(self, *argv: str, run: Run | None = None, **options: object) -> Run:
        run = run or Run()
        command = Command(argv, **options)  # type: ignore[arg-type]  # the tests' own shorthand
        run.exit = await self.provider.exec(self.id, command, run.output)
        run.status = run.exit.status
        return run

    async def sh(self, script: str, run: Run | None = None, **options: object) -> Run:
        return await self.exec("sh", "-c", script, run=run, **options)

    async def processes(self) -> list[str]:
        """The command lines of everything alive but the agent, its reapers and what asks."""
        return [
            each.args
            for each in process_list.parse((await self.exec(*process_list.COMMAND)).stdout)
            if each.pid != 1 and each.state != "Z" and AGENT not in each.args
        ]

    async def settled(self, *lines: str) -> None:
        """Wait until just these live: a background child is another program just after its fork."""
        with anyio.fail_after(60):
            while sorted(await self.processes()) != sorted(lines):
                await anyio.sleep(0.01)


@pytest.fixture
async def provider(anyio_backend: str) -> AsyncIterator[NamespaceProvider]:
    if problem := namespace_problem():
        lack(problem, "DOCKER")
    with tempfile.TemporaryDirectory(prefix="agent-test-") as folder:
        os.chmod(folder, 0o755)
        provider = NamespaceProvider(Path(folder))
        yield provider
        for sandbox_id in tuple(provider.processes):
            await provider.delete(sandbox_id)


@pytest.fixture
async def box(provider: NamespaceProvider) -> Box:
    workdir = provider.folder / "work"
    sandbox_id = await provider.create(SandboxSpec(workdir=str(workdir), env={"SPEC": "spec"}))
    return Box(provider, sandbox_id, workdir)


@pytest.fixture
async def user_box(provider: NamespaceProvider) -> Box:
    """As `box`, but its commands and file calls are those of another user than the agent's."""
    require_root("only root can run an agent for another user")
    workdir = provider.folder / "work"
    spec = SandboxSpec(workdir=str(workdir), user="nobody")
    return Box(provider, await provider.create(spec), workdir)
