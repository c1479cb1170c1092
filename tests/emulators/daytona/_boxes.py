"""The sandboxes of the emulated account; each is a real machine that ends after its lifetime."""

import asyncio
import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from daytona_api_client_async import CreateSandbox, SandboxState

from sandboxkit import SandboxError
from tests.data_here import beside
from tests.emulators._engine import Account, Machine, Process
from tests.emulators._serving import RefusedError
from tests.faults.asgi import Message

KEY = "dtn_0123456789abcdef"
Answer = tuple[int, Any]
Violation = Callable[[str], None]
_START_SECONDS = 0.02
_DELETE_SECONDS = 0.5
_REMOVING_SECONDS = 0.3
"""How long a removed snapshot is still known, as one that is being removed."""
_MACHINES: dict[str, str] = beside(__file__, "machines.toml")
"""Scripts that make a machine like the vendor's."""


def _user_of(build: Any) -> str:
    """The user of an image that is built; the vendor has no other way to choose one."""
    lines = (build.dockerfile_content if build is not None else "").split("\n")
    named = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    return named[-1] if named else "daytona"


@dataclass
class Settings:
    loses_snapshot: bool = False
    """Whether the next snapshot fails after it was begun."""
    most_snapshots: int = 100
    """The organization's quota."""
    profile: str = ""
    """The content of the image's /etc/profile."""
    warm: bool = False
    """Whether sandboxes from a snapshot come from a warm pool, so that they run when creation returns."""
    cpus: float | None = None
    """The organization's limit of CPUs in use; None: no limit."""
    end: tuple[str, dict[str, Any]] | None = None
    """The state in which the next sandbox ends before it has started, and fields of its description."""
    slow: int = 0
    """Number of readers that are treated as slow at their next piece of output."""
    cut: bool | None = None
    """Whether the next write is delivered before its connection is aborted; None: no abort."""


@dataclass
class Box:
    id: str
    asked: CreateSandbox
    labels: dict[str, str]
    user: str
    """The user of its image."""
    cpu: int
    memory: int
    disk: int
    created: datetime.datetime
    destroy_at: datetime.datetime | None = None
    state: SandboxState = SandboxState.CREATING
    error: str | None = None
    said: dict[str, Any] = field(default_factory=dict)
    """Further fields of its description."""
    machine: Machine | None = None
    timer: asyncio.TimerHandle | None = None
    ptys: dict[str, Process] = field(default_factory=dict)
    """The shells of its terminals, which last longer than the connections that created them."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the sandbox has started or failed to start."""
    silent: bool = False
    """Whether connections to its terminals stay open when it stops."""


class Boxes(Account):
    """All running sandboxes."""

    alive: dict[str, Box]

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.gone: dict[str, Box] = {}
        """Those that waited too long for a runner: they can be asked for by their id."""
        self.made_of: dict[str, Box] = {}
        """By the names of snapshots: the sandboxes, which have their sizes and users."""
        self.removing: set[str] = set()
        """The names of those that are being removed."""
        self.inactive: set[str] = set()
        """The names of those that are deactivated."""

    async def create(self, asked: CreateSandbox) -> Box:
        """Begin to create a sandbox. It starts later; with a warm pool it has started on return."""
        now = datetime.datetime.now(datetime.UTC)
        source = self.made_of.get(asked.snapshot or "")
        box = Box(
            id=str(uuid.uuid4()),
            asked=asked,
            labels=dict(asked.labels or {}),
            user=source.user if source else _user_of(asked.build_info),
            cpu=source.cpu if source else asked.cpu or 1,
            memory=source.memory if source else asked.memory or 1,
            disk=source.disk if source else asked.disk or 3,
            created=now,
        )
        self.alive[box.id] = box
        self.set_ttl(box, asked.ttl_minutes or 0)
        self.spawn(self._start(box))
        if self.settings.warm and asked.build_info is None:
            await box.decided.wait()
        return box

    def find(self, id_or_name: str) -> Box | None:
        box = self.alive.get(id_or_name)
        named = (box for box in self.alive.values() if box.asked.name == id_or_name)
        return box or next(named, None) or self.gone.get(id_or_name)

    def set_ttl(self, box: Box, minutes: float) -> None:
        """Set the lifetime to so many minutes from now; 0 means no limit."""
        self.end_after(box.id, minutes * 60 if minutes else None)
        box.destroy_at = None
        if minutes:
            now = datetime.datetime.now(datetime.UTC)
            box.destroy_at = now + datetime.timedelta(minutes=minutes)

    def snapshot(self, box: Box, name: str) -> None:
        """Begin to make a snapshot of a sandbox, which stands still meanwhile.

        If that fails, the sandbox is as before, and nothing says why.
        """

        async def save() -> None:
            assert box.machine is not None
            try:
                made = await box.machine.sandbox.snapshot()
                await asyncio.sleep(_START_SECONDS)  # it is sent to the registry
                if name in self.made_of or self.settings.loses_snapshot:
                    self.settings.loses_snapshot = False
                    await made.delete()
                else:
                    self.snapshots[name], self.made_of[name] = made, box
            except SandboxError:
                pass
            box.state = before

        before, box.state = box.state, SandboxState.SNAPSHOTTING
        self.spawn(save())

    def remove_snapshot(self, name: str) -> None:
        """Begin to remove a snapshot; no sandbox can start from it any more."""

        async def remove() -> None:
            await asyncio.sleep(_REMOVING_SECONDS)
            await self.snapshots.remove(name)
            del self.made_of[name]
            self.removing.discard(name)

        if name not in self.removing:
            self.removing.add(name)
            self.spawn(remove())

    def deactivate(self) -> None:
        """Deactivate all snapshots, as after two weeks without a start."""
        self.inactive = set(self.made_of)

    async def stop_silently(self) -> None:
        """Stop all sandboxes without a reason; their terminals' connections stay open but send nothing."""
        for box in list(self.alive.values()):
            if box.machine is not None:
                box.silent = True
                await box.machine.stop()

    async def _start(self, box: Box) -> None:
        try:
            if not await self._runs(box):
                return
        finally:
            box.decided.set()
        assert box.machine is not None
        await box.machine.ended()
        # The daemon is the container's first process, so the container ends with it.
        box.state = SandboxState.STOPPED
        await asyncio.sleep(_DELETE_SECONDS)
        if box.asked.auto_delete_interval == 0:
            await self.kill(box.id)

    async def _runs(self, box: Box) -> bool:
        """Start a sandbox's machine; return whether it runs. If not, `box.error` has the reason."""
        await asyncio.sleep(_START_SECONDS)
        if self.settings.end is not None:
            (state, box.said), self.settings.end = self.settings.end, None
            box.state = SandboxState(state)
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
        snapshot = self.snapshots.get(asked.snapshot or "")
        prepare = _MACHINES["vendors_image" if self.rooted else "user"]
        if self.rooted and snapshot:
            prepare = ""  # it has all of the machine; one of local's lacks parts of /etc
        try:
            machine = await Machine.start(
                self.session,
                network="none" if restricted else "internet",
                env=asked.env or {},
                pids=4096,
                prepare=prepare,
                user="root" if self.rooted else None,
                daemon=box.user if self.rooted else None,
                snapshot=snapshot,
            )
        except SandboxError as error:
            box.state, box.error = SandboxState.ERROR, f"failed to start: {error}"
            return False
        if box.id not in self.alive:
            await machine.stop()
            return False
        box.machine, box.state = machine, SandboxState.STARTED
        return True


def check_key(scope: Message) -> None:
    headers = dict(scope["headers"])
    if headers.get(b"authorization") != f"Bearer {KEY}".encode():
        raise RefusedError(401, "Invalid credentials")


def read(kind: Any, body: bytes, violation: Violation) -> Any:
    """Parse a request's body as the model `kind`; report unknown fields as a violation."""
    sent = json.loads(body)
    model = kind.from_dict(sent)
    aliases = {field.serialization_alias for field in kind.model_fields.values()}
    if unknown := sent.keys() - aliases - kind.model_fields.keys():
        violation(f"{kind.__name__} has no {sorted(unknown)}")
    return model


def refusal(error: RefusedError, path: str) -> Any:
    return {"statusCode": error.status, "message": str(error), "error": "Error", "path": path}
