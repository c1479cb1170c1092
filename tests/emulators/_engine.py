"""The machine under each emulated sandbox: a local sandbox with our worker in it.

Its processes behave as on a real machine: a stream stays open as long as anybody holds it, a kill
ends one process, and what it started survives. An emulator keeps its machines, and with them the
list of what is alive.
"""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from sandboxkit import Sandbox, Session, Snapshot, SnapshotInUseError

HEADER = struct.Struct(">IcI")
"""As in the worker: length, kind, number."""
_WRITE = '[ -d "${1%/*}" ] || mkdir -p -- "${1%/*}" && exec cat >"$1"'
_CREDIT = 128 << 10
"""Bytes after which the worker learns that more may come; a message for each piece would cost more than
the piece. It is an eighth of the worker's window."""
_WORKER = Path(__file__).with_name("_worker.py")


class MachineEnded(Exception):
    """The machine has ended under a process."""


class Process:
    """A process in a machine."""

    def __init__(self, machine: "Machine", number: int) -> None:
        self._machine, self._number = machine, number
        self._streams: dict[bytes, asyncio.Queue[bytes]] = {
            b"o": asyncio.Queue(),
            b"r": asyncio.Queue(),
        }
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._acks: asyncio.Queue[bool] = asyncio.Queue()

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        return self._read(b"o")

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        return self._read(b"r")

    async def wait(self) -> int:
        """The exit status, or minus the number of the signal that ended it; see MachineEnded."""
        return await asyncio.shield(self._exit)

    async def write(self, data: bytes) -> None:
        """Write to its input, as fast as it reads. Raises BrokenPipeError when nobody does."""
        await self._machine.send(b"w", self._number, data)
        if not await self._acks.get():
            raise BrokenPipeError

    async def close_stdin(self) -> None:
        await self._machine.send(b"e", self._number)

    async def kill(self, signum: int = 9) -> None:
        """Signal this one process; it may have ended."""
        await self._machine.send(b"k", self._number, b"%d" % signum)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal."""
        await self._machine.send(b"z", self._number, b"%d %d" % (rows, cols))

    async def _read(self, stream: bytes) -> AsyncIterator[bytes]:
        taken = 0
        while data := await self._streams[stream].get():
            yield data
            taken += len(data)
            if taken >= _CREDIT:
                await self._machine.send(b"c", self._number, stream + b"%d" % taken)
                taken = 0

    def lose(self) -> None:
        """End all that waits: the machine has ended under the process."""
        if not self._exit.done():
            self._exit.set_exception(MachineEnded())
            self._exit.exception()  # perhaps nobody waits
        for stream in self._streams.values():
            stream.put_nowait(b"")
        self._acks.put_nowait(False)

    def deliver(self, kind: bytes, data: bytes) -> None:
        """Take a frame of the worker."""
        if kind in self._streams:
            self._streams[kind].put_nowait(data)
        elif kind == b"x":
            self._exit.set_result(int(data))
        else:
            self._acks.put_nowait(kind == b"d")


class Machine:
    """A started machine. `stop()` ends everything in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._user: str | None = None
        self._processes: dict[int, Process] = {}
        self._sending = asyncio.Lock()
        self._worker: Any = None
        self._reader: asyncio.Task[None] | None = None

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
        """`options` are those of `Session.sandbox`; its user runs `prepare`, and `daemon` the worker.

        `snapshot` is of another one's disk.
        """
        machine = cls(session.sandbox(lifetime=None, snapshot=snapshot, **options))
        await machine._sandbox.exec(["sh", "-c", prepare], check=True)
        machine._user = daemon
        machine._worker = machine._sandbox.exec(
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
        """Start a process; one that cannot be started ends with status 127."""
        number = len(self._processes)
        process = self._processes[number] = Process(self, number)
        order = {"argv": argv, "env": env, "cwd": cwd or "/", "pty": pty}
        await self.send(b"s", number, json.dumps(order).encode())
        return process

    async def write(self, path: str, data: bytes) -> int:
        """Write a file piece by piece, as a daemon does without a process of its own; return a status."""
        argv = ["sh", "-c", _WRITE, "sh", path]
        return (await self._sandbox.exec(argv, stdin=data, user=self._user)).returncode

    async def snapshot(self) -> Snapshot:
        """Take a snapshot of its disk, while all its processes stand still."""
        return await self._sandbox.snapshot()

    async def stop(self) -> None:
        """End it with all its processes."""
        await self._sandbox.stop()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def ended(self) -> None:
        """Wait until it is over: its worker has ended, which a program of its user may do."""
        assert self._reader is not None
        await asyncio.wait([self._reader])

    async def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        """Send a frame to the worker."""
        async with self._sending:
            if self._worker.done():
                raise MachineEnded
            await self._worker.stdin.write(HEADER.pack(len(data), kind, number) + data)

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


class Snapshots:
    """The snapshots of an emulated account, by their names."""

    def __init__(self) -> None:
        self._there: dict[str, Snapshot] = {}
        self._removed: list[Snapshot] = []
        """Those that sandboxes still run from."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._there)

    def __setitem__(self, name: str, snapshot: Snapshot) -> None:
        self._there[name] = snapshot

    def get(self, name: str | None) -> Snapshot | None:
        """Return the snapshot of a name, or None."""
        return self._there.get(name or "")

    async def remove(self, name: str) -> bool:
        """Remove a snapshot, which sandboxes may still run from; False if there is none."""
        found = self._there.pop(name, None)
        if found is None:
            return False
        try:
            await found.delete()
        except SnapshotInUseError:
            self._removed.append(found)
        return True

    async def aclose(self) -> None:
        """Remove all of them; no sandbox runs any more."""
        for snapshot in (*self._there.values(), *self._removed):
            await snapshot.delete()
