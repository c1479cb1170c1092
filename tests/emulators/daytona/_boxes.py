"""The sandboxes of the emulated account: each a real machine that ends with its time."""

import asyncio
import datetime
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from daytona_api_client_async import CreateSandbox, SandboxState

from sandboxkit import SandboxError, Session
from sandboxkit.providers.docker import DockerProvider
from tests.emulators._engine import Machine, Process

_START_SECONDS = 0.02
_DELETE_SECONDS = 0.5
_USER = """
mkdir /etc/daytona
printf 'root:x:0:0::/root:/bin/sh\\ndaytona:x:%s:%s::/etc/daytona:/bin/sh\\n' $(id -u) $(id -g) >/etc/passwd
printf 'daytona:x:%s:\\n' $(id -g) >/etc/group
"""
"""The machine's one user, who can make folders in few places: the home is elsewhere on the real one."""
_VENDORS_IMAGE = """
useradd --create-home daytona && chmod 700 /home/daytona && chmod 1777 /tmp && rmdir /workspace &&
rm -f /etc/profile.d/*
"""
"""What the vendor's own image is: its user is not root, and has one folder to write to."""
_ROOTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")


def _user_of(build: Any) -> str:
    """The user of an image; the vendor has no other way to choose one."""
    lines = (build.dockerfile_content if build is not None else "").split("\n")
    named = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    return named[-1] if named else "daytona"


@dataclass
class Pty:
    """A terminal, known until its shell ends; it outlives the connection that made it."""

    process: Process
    rows: int
    cols: int


@dataclass
class Box:
    """One sandbox."""

    id: str
    asked: CreateSandbox
    labels: dict[str, str]
    created: datetime.datetime
    destroy_at: datetime.datetime | None = None
    state: SandboxState = SandboxState.CREATING
    error: str | None = None
    said: dict[str, Any] = field(default_factory=dict)
    """What is said of it, too."""
    machine: Machine | None = None
    timer: asyncio.TimerHandle | None = None
    ptys: dict[str, Pty] = field(default_factory=dict)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has started, or has failed to."""
    silent: bool = False
    """Whether connections to its terminals stay open when it stops."""


class Boxes:
    """All sandboxes that are alive."""

    def __init__(self, *, rooted: bool) -> None:
        """`rooted` makes machines with root and other users, as the vendor's are, by Docker."""
        self._rooted = rooted
        self._session = Session(DockerProvider(capabilities=_ROOTS) if rooted else "local")
        self.alive: dict[str, Box] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.gone: dict[str, Box] = {}
        """Those that waited too long for a runner: they can be asked for by their id."""
        self.snapshots: dict[str, bytes] = {}
        """By their names: the disks of the sandboxes that they were made of."""
        self.minute = 60.0
        """Seconds in a minute of lifetime; tests shorten it."""
        self.profile = ""
        """What the image has in /etc/profile."""
        self.warm = False
        """Whether sandboxes of a snapshot come from a warm pool: their creation answers when they run."""
        self.cpus: float | None = None
        """How many the organization may have at a time."""
        self.end: tuple[SandboxState, dict[str, Any]] | None = None
        """How the next sandbox ends before it has started, and what is said of it."""

    async def create(self, asked: CreateSandbox) -> Box:
        """Begin; it starts a little later, and has started on return where the pool is warm."""
        now = datetime.datetime.now(datetime.UTC)
        box = Box(str(uuid.uuid4()), asked, dict(asked.labels or {}), now)
        self.alive[box.id] = box
        self.set_ttl(box, asked.ttl_minutes or 0)
        self._spawn(self._start(box))
        if self.warm and asked.build_info is None:
            await box.decided.wait()
        return box

    def find(self, id_or_name: str) -> Box | None:
        box = self.alive.get(id_or_name)
        named = (box for box in self.alive.values() if box.asked.name == id_or_name)
        return box or next(named, None) or self.gone.get(id_or_name)

    def set_ttl(self, box: Box, minutes: float) -> None:
        """Let it live so many minutes from now; 0 is for ever."""
        if box.timer is not None:
            box.timer.cancel()
        box.timer, box.destroy_at = None, None
        if minutes:
            now = datetime.datetime.now(datetime.UTC)
            box.destroy_at = now + datetime.timedelta(minutes=minutes)
            box.timer = asyncio.get_running_loop().call_later(
                minutes * self.minute, lambda: self._spawn(self.kill(box.id))
            )

    def snapshot(self, box: Box, name: str) -> None:
        """Begin to make a snapshot of a sandbox, which can be used meanwhile."""

        async def save() -> None:
            assert box.machine is not None
            disk = await box.machine.save()
            await asyncio.sleep(_START_SECONDS)
            self.snapshots[name] = disk
            box.state = SandboxState.STARTED

        box.state = SandboxState.SNAPSHOTTING
        self._spawn(save())

    async def kill(self, sandbox_id: str) -> None:
        box = self.alive.pop(sandbox_id, None)
        if box is None:
            return
        if box.timer is not None:
            box.timer.cancel()
        if box.machine is not None:
            await box.machine.stop()

    async def stop_silently(self) -> None:
        """Stop all sandboxes without a reason; their terminals' connections stay open, without data."""
        for box in list(self.alive.values()):
            if box.machine is not None:
                box.silent = True
                await box.machine.stop()

    async def kill_all(self) -> None:
        for sandbox_id in list(self.alive):
            await self.kill(sandbox_id)

    async def aclose(self) -> None:
        """End all sandboxes at once, those that are starting, too."""
        for task in self._tasks:
            task.cancel()
        await self._session.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, box: Box) -> None:
        try:
            if not await self._runs(box):
                return
        finally:
            box.decided.set()
        assert box.machine is not None
        await box.machine.ended()
        # The daemon is the container's first process: without it there is no container.
        box.state = SandboxState.STOPPED
        await asyncio.sleep(_DELETE_SECONDS)
        if box.asked.auto_delete_interval == 0:
            await self.kill(box.id)

    async def _runs(self, box: Box) -> bool:
        """Start a sandbox's machine; return whether it runs, else the sandbox says why not."""
        await asyncio.sleep(_START_SECONDS)
        if self.end is not None:
            (box.state, box.said), self.end = self.end, None
            if box.state is SandboxState.DESTROYED:
                self.gone[box.id] = self.alive.pop(box.id)
            return False
        build = box.asked.build_info
        if build is not None and "missing" in build.dockerfile_content:
            box.state = SandboxState.BUILD_FAILED
            box.error = "failed to pull image: manifest unknown"
            return False
        asked = box.asked
        restricted = asked.network_block_all or asked.domain_allow_list or asked.network_allow_list
        network = "none" if restricted else "internet"
        env = box.asked.env or {}
        try:
            machine = await Machine.start(
                self._session,
                network=network,
                env=env,
                pids=4096,
                prepare=_VENDORS_IMAGE if self._rooted else _USER,
                user="root" if self._rooted else None,
                daemon=_user_of(build) if self._rooted else None,
                disk=self.snapshots.get(box.asked.snapshot or "", b""),
            )
        except SandboxError as error:
            box.state, box.error = SandboxState.ERROR, f"failed to start: {error}"
            return False
        if box.id not in self.alive:
            await machine.stop()
            return False
        box.machine, box.state = machine, SandboxState.STARTED
        return True
