"""Machines of a vendor's, as far as the agent sees one: a first process that is not the agent's,
neighbours, and programs that are put into it from outside."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Self

import anyio

from sandboxkit.provider import FirstCommand, no_sandbox
from sandboxkit.providers._hosted.agent import HostedBox, HostedProvider, ProgramStream
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState
from tests import process_list
from tests.agent.conftest import NAMESPACE, Commands

# Folders of the machine's own, so that the tests' machines share no agent.
OWN_FOLDERS = "mount -t tmpfs none /usr/local/bin && mount -t tmpfs none /dev/shm && mount -t tmpfs none /root"
MACHINE = [*NAMESPACE[:-1], "--mount", NAMESPACE[-1]] if os.getuid() == 0 else NAMESPACE


class Program(ProgramStream):
    """A process of this machine, by its pipes."""

    def __init__(self, process: asyncio.subprocess.Process, sandbox_id: str) -> None:
        self.process, self.sandbox_id = process, sandbox_id
        self.sizes: list[int] = []
        """The bytes of what was sent, each time."""
        self._reading = asyncio.create_task(self._stderr())

    async def _stderr(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(4096):
            self.diagnostics = (self.diagnostics + data)[-2000:]

    async def receive(self, max_bytes: int = 65536) -> bytes:
        assert self.process.stdout is not None
        data = await self.process.stdout.read(max_bytes)
        if not data:
            await asyncio.wait([self._reading], timeout=30)
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        assert self.process.stdin is not None
        self.sizes.append(len(item))
        try:
            self.process.stdin.write(item)
            await self.process.stdin.drain()
        except OSError as error:
            raise anyio.BrokenResourceError from error

    def kill(self) -> None:
        """End it, as the vendor ends a call: what entered the machine, too, which is a child."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def freeze(self, *, thaw: bool = False) -> None:
        """Stop it, as the vendor's daemon does that carries it, or let it go on."""
        os.killpg(self.process.pid, signal.SIGCONT if thaw else signal.SIGSTOP)

    async def aclose(self) -> None:
        self.kill()
        await self.process.wait()
        await asyncio.wait([self._reading])
        self.process._transport.close()  # type: ignore[attr-defined]  # asyncio has no other way


class MachineBox(HostedBox):
    """One machine: a process namespace that has a life without the agent."""

    def __init__(self, provider: "Machines", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider

    async def start(self) -> None:
        """Start the machine, or start it again."""
        process = await asyncio.create_subprocess_exec(
            *MACHINE, "sh", "-c", f"{self.backend.prepare}; echo up; exec sleep 1000",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
        self.backend.processes[self.id] = process

    async def halt(self) -> None:
        """End the machine with all that is in it."""
        process = self.backend.processes.pop(self.id, None)
        if process is not None:
            process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # asyncio has no other way

    async def program(self, *argv: str) -> Program:
        """Run a program inside, as the vendor does; it is nobody's child there."""
        async with self.backend.spawning:
            await self.info()
            pid, pipe = self.backend.processes[self.id].pid, asyncio.subprocess.PIPE
            first = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            with anyio.CancelScope(shield=True):  # else it would be nobody's
                process = await asyncio.create_subprocess_exec(
                    "nsenter", "--target", first, "--pid", "--mount", *argv,
                    stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
                )  # fmt: skip
                self.backend.programs.append(Program(process, self.id))
            return self.backend.programs[-1]

    async def _run(self, argv: tuple[str, ...]) -> ProgramStream:
        link = await self.program(*argv)
        self.backend.links.append(link)
        return link

    async def info(self) -> SandboxInfo:
        if self.id not in self.backend.processes:
            raise no_sandbox(self.id)
        return SandboxInfo(self.id, self.backend.name, SandboxState.RUNNING, {})

    async def delete(self) -> None:
        await self.forget()
        await self.halt()
        async with self.backend.spawning:
            for program in self.backend.programs:
                if program.sandbox_id == self.id:
                    await program.aclose()


class Machines(HostedProvider[MachineBox]):
    """A provider whose sandboxes are machines."""

    name = "machines"

    def __init__(self, prepare: str = "true", kind: type[MachineBox] = MachineBox) -> None:
        """`prepare` is what a machine's image does to it first."""
        vars(self)["box_type"] = kind
        super().__init__()
        self.prepare = prepare
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.programs: list[Program] = []
        self.links: list[Program] = []
        self.spawning = anyio.Lock()
        """Held while a program is started, so that `delete` finds every program."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> MachineBox:
        box = self.box(secrets.token_hex(6))
        await box.start()
        try:
            await box.begin(spec)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await box.delete()
            raise
        return box

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for sandbox_id in list(self.processes):
            yield await self.box(sandbox_id).info()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete all machines. One that a test has halted is in no list, and may have programs to reap."""
        programs = {program.sandbox_id for program in self.programs}
        for sandbox_id in {*self.processes, *programs}:
            await self.box(sandbox_id).delete()


class Machine(Commands[MachineBox]):
    """One machine, with shorter ways to look into it."""

    async def program(self, *argv: str) -> Program:
        return await self.inner.program(*argv)

    async def output_of(self, *argv: str) -> bytes:
        with anyio.fail_after(60):
            return b"".join([part async for part in await self.program(*argv)])

    async def listed(self) -> list[process_list.Listed]:
        return process_list.parse(await self.output_of(*process_list.COMMAND))

    async def agent(self) -> process_list.Listed:
        """The agent inside. Its reapers share its memory, command line and all: it is the first."""
        found = [e for e in await self.listed() if e.args.startswith("sandboxkit-agent -beside")]
        return min(found, key=lambda each: each.pid)


async def started(machines: Machines, workdir: str = "/tmp", user: str | None = None) -> Machine:
    return Machine(await machines.create(SandboxSpec(workdir=workdir, user=user)))
