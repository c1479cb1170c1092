"""The sandboxes of the emulated account; each is a real machine with a lifetime."""

import asyncio
import datetime
import secrets
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from e2b.api.client.models import SandboxNetworkConfig

from tests.data_here import beside
from tests.emulators._engine import Account, Machine, Process

HOMES = {"user": "/workspace", "root": "/etc/root"}
"""The users of every template, and their homes. Both run as the machine's only user, who may create
folders in few places; the real homes are elsewhere."""
_MACHINES: dict[str, str] = beside(__file__, "machines.toml")
"""Scripts that make a machine like E2B's."""


@dataclass
class Settings:
    limit: int = 100
    """Maximum number of the account's concurrent sandboxes."""
    unforkable: str = ""
    """The kernel's error text with which every start of a process fails; "" for none."""
    hold: bool = False
    """Whether the proxy forwards a request only when its body is complete, as many proxies do."""
    idle: float | None = None
    """After how long the proxy ends a streamed request of which nothing comes; None for never."""


@dataclass
class Running:
    process: Process
    config: Any
    pty: bool
    closed: bool
    """Whether its stdin is closed."""
    subscribers: list[asyncio.Queue[Any]] = field(default_factory=list)
    end: Any = None


@dataclass
class Box:
    id: str
    template: str
    metadata: dict[str, str]
    env: dict[str, str]
    internet: bool
    network: SandboxNetworkConfig
    machine: Machine
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    started: datetime.datetime = field(default_factory=lambda: now())
    ends: datetime.datetime = field(default_factory=lambda: now())
    timer: asyncio.TimerHandle | None = None
    paused: bool = False
    processes: dict[int, Running] = field(default_factory=dict)
    pids: int = 1000


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Boxes(Account):
    """All running sandboxes."""

    alive: dict[str, Box]

    def __init__(self, shape: SimpleNamespace, settings: Settings) -> None:
        super().__init__()
        self.shape, self.settings = shape, settings
        self.keys: dict[str, str] = {}
        """Idempotency keys: what each has made."""
        self.starting = 0
        self.kept_alive = 0
        """Number of keep-alive messages on streamed inputs."""

    async def create(
        self,
        template: str,
        metadata: Any,
        env: Any,
        internet: bool,
        rules: SandboxNetworkConfig,
        ttl: int,
    ) -> Box:
        number = secrets.token_hex(9)
        box_id = self.shape.id_form.format(hex=number, short=number[:6], uuid=uuid.uuid4())
        snapshot = self.snapshots.get(template)
        prepare = _MACHINES["template" if self.rooted else "users"]
        if self.rooted and snapshot:  # it has all files, a local one lacks /etc
            prepare = ""
        self.starting += 1
        try:
            machine = await Machine.start(
                self.session,
                network="internet" if internet and not rules.deny_out else "none",
                env={"E2B_SANDBOX": "true", **env},
                user="root" if self.rooted else None,
                prepare=prepare,
                snapshot=snapshot,
            )
        finally:
            self.starting -= 1
        box = Box(box_id, template, metadata, env, internet, rules, machine)
        self.alive[box.id] = box
        self.set_timeout(box, ttl)
        return box

    def set_timeout(self, box: Box, ttl: int | None) -> None:
        """Set the lifetime to so many seconds from now; it may become shorter. None: it stands still."""
        box.ends = now() + datetime.timedelta(seconds=ttl or 0)
        self.end_after(box.id, ttl)
