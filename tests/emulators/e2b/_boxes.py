"""The sandboxes of the emulated account; each is a real machine with a lifetime."""

import asyncio
import datetime
import secrets
from dataclasses import dataclass, field
from typing import Any

from e2b.api.client.models import SandboxNetworkConfig

from sandboxkit import Session
from sandboxkit.providers.docker import DockerProvider
from tests.emulators._engine import Machine, Process, Snapshots
from tests.emulators.e2b._shapes import Shape

BASE_ENV = {"E2B_SANDBOX": "true"}
HOMES = {"user": "/workspace", "root": "/etc/root"}
"""The users of every template, and their homes. Both run as the machine's only user, who may create
folders in few places; the real homes are elsewhere."""
_USERS = """
mkdir -p /etc/root
printf 'root:x:0:0:root:/etc/root:/bin/sh\nuser:x:%s:%s::/workspace:/bin/sh\n' $(id -u) $(id -g) >/etc/passwd
printf 'root:x:0:\nuser:x:%s:\n' $(id -g) >/etc/group
"""

_TEMPLATE = """
echo 'user:x:1000:1000::/home/user:/bin/sh' >>/etc/passwd
echo 'user:x:1000:' >>/etc/group
mkdir -p /home/user /code
chown user:user /home/user
chmod 777 /code
chmod -R 777 /usr/local
rmdir /workspace
"""
"""The changes that E2B makes to an image from which a template is built."""
_ROOTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")


@dataclass
class Running:
    """A running process of the daemon."""

    process: Process
    config: Any
    tag: str | None
    pty: bool
    closed: bool
    """Whether its stdin is closed."""
    subscribers: list[asyncio.Queue[Any]] = field(default_factory=list)
    end: Any = None


@dataclass
class Box:
    """One sandbox."""

    id: str
    template: str
    metadata: dict[str, str]
    env: dict[str, str]
    internet: bool
    network: SandboxNetworkConfig
    machine: Machine
    token: str
    started: datetime.datetime
    ends: datetime.datetime
    timer: asyncio.Task[None] | None = None
    paused: bool = False
    processes: dict[int, Running] = field(default_factory=dict)
    pids: int = 1000
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Boxes:
    """All running sandboxes."""

    def __init__(self, shape: Shape, *, rooted: bool) -> None:
        """With `rooted`, machines are Docker containers with root and other users."""
        self.shape, self._rooted = shape, rooted
        self._session = Session(DockerProvider(capabilities=_ROOTS) if rooted else "local")
        self.alive: dict[str, Box] = {}
        self.keys: dict[str, str] = {}
        """Idempotency keys: what each has made."""
        self.snapshots = Snapshots()
        """By their ids: the disks of the sandboxes that they were made of."""
        self.limit = 100
        """Maximum number of the account's concurrent sandboxes."""
        self.starting = 0
        self.kept_alive = 0
        """Number of keep-alive messages on streamed inputs."""
        self.unforkable = ""
        """The kernel's error text with which every start of a process fails; "" for none."""

    async def create(
        self,
        template: str,
        metadata: Any,
        env: Any,
        internet: bool,
        rules: SandboxNetworkConfig,
        ttl: int,
    ) -> Box:
        snapshot = self.snapshots.get(template)
        prepare = _USERS
        if self._rooted:  # a docker snapshot has all files, a local one lacks /etc
            prepare = "" if snapshot else _TEMPLATE
        network = "internet" if internet and not rules.deny_out else "none"
        self.starting += 1
        try:
            machine = await Machine.start(
                self._session,
                network=network,
                env={**BASE_ENV, **env},
                user="root" if self._rooted else None,
                prepare=prepare,
                snapshot=snapshot,
            )
        finally:
            self.starting -= 1
        now = datetime.datetime.now(datetime.UTC)
        box = Box(
            id=self.shape.new_id(),
            template=template,
            metadata=metadata,
            env=env,
            internet=internet,
            network=rules,
            machine=machine,
            token=secrets.token_hex(16),
            started=now,
            ends=now,
        )
        self.alive[box.id] = box
        self.set_timeout(box, ttl)
        return box

    def set_timeout(self, box: Box, ttl: int | None) -> None:
        """Set the lifetime to so many seconds from now; it may become shorter. None: it stands still."""
        if box.timer is not None:
            box.timer.cancel()
        box.ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ttl or 0)
        if ttl is None:
            return

        async def end() -> None:
            await asyncio.sleep(ttl)
            box.timer = None
            await self.kill(box.id)

        box.timer = asyncio.create_task(end())

    async def kill(self, sandbox_id: str) -> bool:
        box = self.alive.pop(sandbox_id, None)
        if box is None:
            return False
        if box.timer is not None:
            box.timer.cancel()
        await box.machine.stop()
        return True

    async def kill_all(self) -> None:
        for sandbox_id in list(self.alive):
            await self.kill(sandbox_id)

    async def aclose(self) -> None:
        await self.kill_all()
        await self.snapshots.aclose()
        await self._session.close()
