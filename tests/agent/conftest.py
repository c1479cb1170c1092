"""A real agent as PID 1 of a process namespace of this machine, without a sandbox around it."""

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest import mock

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit import provider as contract
from sandboxkit.provider import FirstCommand, no_sandbox
from sandboxkit.providers._agent import binary
from sandboxkit.providers._agent.box import AgentBox, AgentProvider
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.launch import agent_flags, config_of
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.types import Command, Exit, SandboxInfo, SandboxSpec, StdinItem
from tests import process_list
from tests.components import lack, reason, require_root
from tests.data_here import beside

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
if os.getuid() != 0:
    NAMESPACE.append("--map-root-user")
AGENT = "agent-linux-"
"""How the names of the agent, and of a reaper, which is a clone of the agent, begin."""
PROGRAMS: dict[str, Any] = beside(__file__, "programs.toml")
"""The programs that the tests run inside: Python, shell, and trees of processes."""


class NamespaceBox(AgentBox):
    """A process namespace with an agent, and a socket for further clients."""

    def __init__(self, provider: "NamespaceProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend, self.socket = provider, provider.folder / sandbox_id
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, spec: SandboxSpec) -> None:
        """Start its agent and become the owner."""
        ours, theirs = socket.socketpair()
        with socket.socket(socket.AF_UNIX) as listener, theirs:
            listener.bind(str(self.socket))
            listener.listen()
            self.process = await asyncio.create_subprocess_exec(
                *self._argv(spec, listener.fileno()),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                pass_fds=[listener.fileno()],
            )
        await self.attach(UnixStream(ours), config_of(spec))

    def _argv(self, spec: SandboxSpec, listen_fd: int) -> list[str]:
        """Return the command of an agent that has its owner's stream as stdin and stdout."""
        return [*NAMESPACE, str(binary.path()), *agent_flags(spec, listen_fd=listen_fd)]

    def _agent_pid(self) -> int | None:
        if self.process is None or self.process.returncode is not None:
            return None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return next(map(int, children.read_text().split()), None)

    async def _connect(self) -> ByteStream:
        try:
            return await UnixStream.connect(str(self.socket))
        except OSError as error:
            raise no_sandbox(self.id) from error

    async def delete(self) -> None:
        await self.forget()
        if self.process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()


class NamespaceProvider(AgentProvider[NamespaceBox]):
    """The smallest agent provider."""

    name = "namespace"

    def __init__(self, folder: Path, kind: type[NamespaceBox] = NamespaceBox) -> None:
        vars(self)["box_type"] = kind
        super().__init__()
        self.folder = folder
        self.made: list[NamespaceBox] = []

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> NamespaceBox:
        box = self.box(f"ns{len(self.made)}")
        self.made.append(box)
        await box.start(spec)
        return box

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        none: tuple[SandboxInfo, ...] = ()
        for info in none:
            yield info


@contextmanager
def hostile_agents() -> Iterator[None]:
    """Sandboxes that start meanwhile have a program in the agent's place; see programs.toml."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "agent")
        program.write_text(PROGRAMS["hostile"])
        for path in (program, program.parent):
            path.chmod(0o755)
        with mock.patch.object(binary, "path", return_value=program):
            yield


class Run:
    """A command's whole outcome; its output goes to `consume` instead, if that is given."""

    def __init__(self, consume: Callable[[bytes], Awaitable[None]] | None = None) -> None:
        self._consume = consume
        self.stdout = b""
        self.stderr = b""
        self.exit = Exit(-1)
        self.started = anyio.Event()

    @property
    def status(self) -> int:
        return self.exit.status

    async def output(self, stream: str, data: bytes) -> None:
        self.started.set()
        if self._consume is not None:
            await self._consume(data)
        elif stream == "stdout":
            self.stdout += data
        else:
            self.stderr += data


async def after(event: anyio.Event, line: bytes) -> AsyncIterator[StdinItem]:
    """Stdin of one line, which waits for an event."""
    await event.wait()
    yield line


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; fail after a minute."""
    with anyio.fail_after(60):
        while not holds():
            await anyio.sleep(0.01)


@asynccontextmanager
async def at_start(run: Run, act: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Beside the body, act as soon as a command has printed something."""

    async def wait() -> None:
        await run.started.wait()
        await act()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        yield


BoxT = TypeVar("BoxT", bound=contract.Box)


class Commands(Generic[BoxT]):
    """Shorter ways to run commands in the sandbox `inner`."""

    def __init__(self, inner: BoxT) -> None:
        self.inner, self.id = inner, inner.id

    async def exec(self, *argv: str, run: Run | None = None, **options: object) -> Run:
        run = run or Run()
        command = Command(argv, **options)  # type: ignore[arg-type]  # the tests' own shorthand
        run.exit = await self.inner.exec(command, run.output)
        return run

    async def sh(self, script: str, run: Run | None = None, **options: object) -> Run:
        return await self.exec("sh", "-c", script, run=run, **options)

    @asynccontextmanager
    async def running(
        self, *argv: str, run: Run | None = None, **options: object
    ) -> AsyncIterator[Run]:
        """Run a script, or a program with arguments; yield once it prints, and cancel it at the end."""
        run = run or Run()
        argv = argv if len(argv) > 1 else ("sh", "-c", *argv)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(self.exec, *argv, run=run, **options))
            await run.started.wait()
            yield run
            group.cancel_scope.cancel()


class Box(Commands[NamespaceBox]):
    """One sandbox of the provider of this folder."""

    def __init__(self, inner: NamespaceBox) -> None:
        super().__init__(inner)
        self.workdir = inner.backend.folder / "work"

    @property
    def client(self) -> AgentClient:
        assert self.inner.client is not None
        return self.inner.client

    def agent_pid(self) -> int:
        pid = self.inner._agent_pid()
        assert pid is not None
        return pid

    async def processes(self) -> list[str]:
        """The command lines of everything alive but the agent, its reapers and what asks."""
        return [
            each.args
            for each in process_list.parse((await self.exec(*process_list.COMMAND)).stdout)
            if each.pid != 1 and each.args and AGENT not in each.args
        ]

    async def settled(self, *lines: str) -> None:
        """Wait until just these live: a background child is another program just after its fork."""
        with anyio.fail_after(60):
            while sorted(await self.processes()) != sorted(lines):
                await anyio.sleep(0.01)


async def made(provider: NamespaceProvider, **fields: object) -> Box:
    """Start a sandbox with a working directory beside its socket."""
    workdir = str(provider.folder / "work")
    spec = SandboxSpec(workdir=workdir, **fields)  # type: ignore[arg-type]  # a shorthand
    return Box(await provider.create(spec))


@pytest.fixture
async def provider(anyio_backend: str) -> AsyncIterator[NamespaceProvider]:
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True)
    if done.returncode:
        remedy = "allow user namespaces, or run the tests as root of the machine"
        lack(reason("namespaces of processes", remedy, done.stderr), "DOCKER")
    with tempfile.TemporaryDirectory(prefix="agent-test-") as folder:
        os.chmod(folder, 0o755)
        provider = NamespaceProvider(Path(folder))
        yield provider
        for box in provider.made:
            await box.delete()


@pytest.fixture
async def box(provider: NamespaceProvider) -> Box:
    return await made(provider, env={"SPEC": "spec"})


@pytest.fixture
async def user_box(provider: NamespaceProvider) -> Box:
    """As `box`, but its commands and file calls are those of another user than the agent's."""
    require_root("only root can run an agent for another user")
    return await made(provider, user="nobody")


@pytest.fixture(params=["box", "user_box"])
def any_box(request: pytest.FixtureRequest) -> Box:
    box: Box = request.getfixturevalue(request.param)
    return box
