"""The machine of each emulated sandbox: a local sandbox in which our worker runs.

Its processes behave as on a real machine: a stream stays open as long as any process has it open, and
a kill ends one process but not its children. An emulator keeps its machines, and thereby the list of
running sandboxes.
"""

import asyncio
import json
import struct
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from sandboxkit import Sandbox, Session, Snapshot, SnapshotInUseError
from sandboxkit.providers.docker import DockerProvider

HEADER = struct.Struct(">IcI")
"""The header of a frame, as in the worker: length, kind, number of the process."""
_WRITE = '[ -d "${1%/*}" ] || mkdir -p -- "${1%/*}" && exec cat >"$1"'
_CREDIT = 128 << 10
"""Bytes after which the worker gets credit for more output, an eighth of its window. A message for each
piece of output would cost more than the piece."""
_ROOTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
_WORKER = Path(__file__).with_name("_worker.py")


class MachineEnded(Exception):
    """Raised if the machine ended while a process ran."""


class Process:
    def __init__(self, machine: "Machine", number: int) -> None:
        self._machine, self._number = machine, number
        self._streams: dict[bytes, asyncio.Queue[bytes]]
        self._streams = {each: asyncio.Queue() for each in (b"o", b"r")}
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._acks: asyncio.Queue[bool] = asyncio.Queue()

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        return self._read(b"o")

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        return self._read(b"r")

    async def wait(self) -> int:
        """Return the exit status, or minus the number of the fatal signal. Raises MachineEnded."""
        return await asyncio.shield(self._exit)

    async def write(self, data: bytes) -> None:
        """Write to its stdin, and wait until it is read. Raises BrokenPipeError if nobody can read it."""
        await self._machine.send(b"w", self._number, data)
        if not await self._acks.get():
            raise BrokenPipeError

    async def close_stdin(self) -> None:
        await self._machine.send(b"e", self._number)

    async def kill(self, signum: int = 9) -> None:
        """Send a signal to this process only; do nothing if it has ended."""
        await self._machine.send(b"k", self._number, b"%d" % signum)

    async def _read(self, stream: bytes) -> AsyncIterator[bytes]:
        taken = 0
        while data := await self._streams[stream].get():
            yield data
            taken += len(data)
            if taken >= _CREDIT:
                await self._machine.send(b"c", self._number, stream + b"%d" % taken)
                taken = 0

    def lose(self) -> None:
        """End all waiting calls, because the machine has ended: `wait` raises, streams end, writes fail."""
        if not self._exit.done():
            self._exit.set_exception(MachineEnded())
            self._exit.exception()  # retrieved, since perhaps nobody waits for it
        for stream in self._streams.values():
            stream.put_nowait(b"")
        self._acks.put_nowait(False)

    def deliver(self, kind: bytes, data: bytes) -> None:
        """Process a frame from the worker."""
        if kind in self._streams:
            self._streams[kind].put_nowait(data)
        elif kind == b"x":
            self._exit.set_result(int(data))
        else:
            self._acks.put_nowait(kind == b"d")


class Machine:
    """A started machine. `stop()` ends everything in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._user: str | None = None
        self._processes: dict[int, Process] = {}
        self._sending = asyncio.Lock()
        self._worker: Any
        self._reader: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        session: Session,
        *,
        prepare: str = "",
        daemon: str | None = None,
        snapshot: Snapshot | None = None,
        **options: Any,
    ) -> "Machine":
        """Start a machine; `options` are those of `Session.sandbox`.

        With `snapshot` it starts from another machine's disk. The sandbox's user runs the script `prepare`; the
        user `daemon` runs the worker.
        """
        machine = cls(session.sandbox(lifetime=None, snapshot=snapshot, **options))
        await machine.sandbox.exec(["sh", "-c", prepare], check=True)
        machine._user = daemon
        machine._worker = machine.sandbox.exec(
            ["python3", "-I", "-S", "-c", _WORKER.read_text()], stdin=True, cwd="/", user=daemon
        )
        machine._reader = asyncio.create_task(machine._receive())
        return machine

    async def spawn(
        self,
        argv: tuple[str, ...],
        *,
        env: dict[str, str],
        cwd: str | None = None,
        pty: tuple[int, int] | None = None,
    ) -> Process:
        """Start a process. One that cannot be started exits with status 127."""
        number = len(self._processes)
        process = self._processes[number] = Process(self, number)
        order = {"argv": argv, "env": env, "cwd": cwd or "/", "pty": pty}
        await self.send(b"s", number, json.dumps(order).encode())
        return process

    async def write(self, path: str, data: bytes) -> int:
        """Write a file, as a vendor's daemon would; return the exit status of the shell that writes it."""
        argv = ["sh", "-c", _WRITE, "sh", path]
        return (await self.sandbox.exec(argv, stdin=data, user=self._user)).returncode

    async def stop(self) -> None:
        await self.sandbox.stop()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the worker has ended; a program of the same user can kill it."""
        await asyncio.wait([self._reader])

    async def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        async with self._sending:
            try:
                await self._worker.stdin.write(HEADER.pack(len(data), kind, number) + data)
            except BrokenPipeError:  # the worker has ended, perhaps at this very moment
                raise MachineEnded from None

    async def _receive(self) -> None:
        received = bytearray()
        async for chunk in self._worker.stdout.bytes():
            received += chunk
            while len(received) >= HEADER.size:
                size, kind, number = HEADER.unpack_from(received)
                if len(received) < HEADER.size + size:
                    break
                self._processes[number].deliver(kind, bytes(received[HEADER.size :][:size]))
                del received[: HEADER.size + size]
        for process in self._processes.values():
            process.lose()


class Snapshots(dict[str, Snapshot]):
    """The snapshots of an emulated account, by their names."""

    _removed: tuple[Snapshot, ...] = ()
    """Removed snapshots from which sandboxes still run."""

    async def remove(self, name: str) -> bool:
        """Remove a snapshot, which sandboxes may still run from; False if there is none."""
        found = self.pop(name, None)
        if found is None:
            return False
        try:
            await found.delete()
        except SnapshotInUseError:
            self._removed += (found,)
        return True

    async def aclose(self) -> None:
        """Remove all of them; no sandbox runs any more."""
        for snapshot in (*self.values(), *self._removed):
            await snapshot.delete()


class Account:
    """The sandboxes of an emulated account, by their ids, and its snapshots."""

    def __init__(self) -> None:
        """With the option "rooted", machines are Docker containers with root and other users."""
        self.rooted = "rooted" in sys.argv[1:]
        provider = DockerProvider(capabilities=_ROOTS) if self.rooted else "local"
        self.session = Session(provider)
        self.alive: dict[str, Any] = {}  # Any: each vendor's sandboxes
        self.snapshots = Snapshots()
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end_after(self, box_id: str, seconds: float | None) -> None:
        """Let a sandbox end so many seconds from now; None means never."""
        box = self.alive[box_id]
        if box.timer is not None:
            box.timer.cancel()
        box.timer = None
        if seconds is not None:
            box.timer = asyncio.get_running_loop().call_later(
                seconds, lambda: self.spawn(self.kill(box_id))
            )

    async def kill(self, box_id: str) -> None:
        """End a sandbox; do nothing if it has ended."""
        box = self.alive.pop(box_id, None)
        if box is None:
            return
        if box.timer is not None:
            box.timer.cancel()
        if box.machine is not None:
            await box.machine.stop()

    async def kill_all(self) -> None:
        for box_id in list(self.alive):
            await self.kill(box_id)

    async def aclose(self) -> None:
        """End everything, including what is starting."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.kill_all()
        await self.snapshots.aclose()
        await self.session.close()
