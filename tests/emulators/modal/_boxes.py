"""Modal's sandboxes, with their definition, their machine and their result."""

import asyncio
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from sandboxkit import Session
from tests.emulators._engine import Machine, MachineEnded, Process, Snapshots
from tests.emulators.modal._stdio import Stdio

V1, V2 = "V1", "V2"
_MAX_TIMEOUT = 24 * 3600
_TAG = re.compile(r"[A-Za-z0-9._-]{1,63}")
_GPUS = ("T4", "L4", "A10G", "A100", "H100", "H200", "B200")
_REGIONS = ("us-east", "us-west", "eu-west", "ap-south")
_MAX_MEMORY_MB = 344_064
_Result = api_pb2.GenericResult


@dataclass
class Settings:
    repeats_writes: bool = False
    """Whether repeated input is written again, as Modal's own server does."""
    linger: float = 0.0
    """Seconds for which a sandbox keeps running after it is no longer listed."""
    clock_skew: float = 0.0
    """Seconds by which this server's clock is ahead of its clients'."""


class Exec:
    """One command on the worker, identified by the id that the SDK chose."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.stdout, self.stderr = Stdio(), Stdio()
        self.written = 0
        self.closed = False
        self.writing = asyncio.Lock()
        self.ended = asyncio.Event()
        self.pumps: list[asyncio.Task[None]] = []


class Box:
    """One sandbox; `result` is None while it runs."""

    def __init__(self, kind: str, app_id: str, definition: Any, tags: dict[str, str]) -> None:
        # The SDK distinguishes V1 and V2 sandboxes only by the form of the id.
        self.id = f"sb-{secrets.token_hex(11 if kind == V1 else 13)}"
        self.task_id = f"ta-{secrets.token_hex(13)}{'V' if kind == V2 else ''}"
        self.app_id = app_id
        self.definition = definition
        self.name = definition.name
        self.tags = tags
        self.timeout: int = definition.timeout_secs
        self.created_at = time.time()
        self.machine: Machine | None = None
        self.result: Any = None
        self.ended = asyncio.Event()
        self.execs: dict[str, Exec] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.work: set[asyncio.Task[Any]] = set()
        """Calls in progress, even if no client waits for their response."""
        self.spawning = asyncio.Lock()
        self.ready = asyncio.Event()
        """Set when its task has been scheduled and its first process has started."""

    async def wait(self, timeout: float) -> None:
        """Return when the sandbox has ended, or after `timeout` seconds."""
        try:
            await asyncio.wait_for(self.ended.wait(), timeout or 0.001)
        except TimeoutError:
            pass


class Boxes:
    """All sandboxes of this emulator, including finished ones."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session, self.settings = session, settings
        self._boxes: dict[str, Box] = {}
        self.snapshots = Snapshots()
        """By their ids: the images that were made of sandboxes."""
        self.expiries: dict[str, float] = {}
        """When each of these images expires, for new sandboxes."""
        self._asked: dict[str, asyncio.Task[str]] = {}
        """By the ids that clients gave to their requests for images."""
        self._making: set[asyncio.Task[None]] = set()

    def find(self, sandbox_id: str) -> Box:
        """Return the sandbox with this id, running or finished. Raises NOT_FOUND for an unknown id."""
        if sandbox_id not in self._boxes:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox_id!r} not found")
        return self._boxes[sandbox_id]

    def of_task(self, task_id: str) -> Box:
        """Return the sandbox of a task. Raises NOT_FOUND after its end, as the real worker does."""
        box = next((box for box in self._boxes.values() if box.task_id == task_id), None)
        if box is None or box.ended.is_set():
            raise GRPCError(Status.NOT_FOUND, f"Task {task_id!r} not found")
        return box

    def running(self) -> Iterator[Box]:
        return (box for box in list(self._boxes.values()) if box.result is None)

    @property
    def alive(self) -> list[str]:
        return [box.id for box in self.running()]

    def has_image(self, image_id: str) -> bool:
        """Whether an image was made of a sandbox, and has neither expired nor been removed."""
        return image_id in self.snapshots and time.time() < self.expiries[image_id]

    async def image_of(self, box: Box, request: Any) -> str:
        """Make an image of a sandbox, one for each id of a request, and return its id."""
        if request.ttl_seconds < 1 and request.ttl_seconds != -1:
            raise GRPCError(Status.INVALID_ARGUMENT, "ttl_seconds must be positive, or -1")

        async def make() -> str:
            assert box.machine is not None
            image_id = f"im-{secrets.token_hex(11)}"
            self.snapshots[image_id] = await box.machine.sandbox.snapshot()
            never = request.ttl_seconds == -1
            self.expiries[image_id] = math.inf if never else time.time() + request.ttl_seconds
            return image_id

        if request.snapshot_id not in self._asked:
            self._asked[request.snapshot_id] = asyncio.create_task(make())
        return await asyncio.shield(self._asked[request.snapshot_id])

    async def create(
        self, kind: str, app_id: str, definition: Any, tags: dict[str, str], env: dict[str, str]
    ) -> Box:
        """Start a sandbox. Raises GRPCError for arguments that Modal refuses."""
        if not 0 < definition.timeout_secs <= _MAX_TIMEOUT:
            raise GRPCError(Status.INVALID_ARGUMENT, "timeout must be between 1s and 24h")
        for region in definition.scheduler_placement.regions:
            if region not in _REGIONS:
                raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid region: {region!r}")
        if definition.resources.memory_mb > _MAX_MEMORY_MB:
            raise GRPCError(Status.INVALID_ARGUMENT, f"memory must be at most {_MAX_MEMORY_MB} MiB")
        for network in definition.network_access.allowed_cidrs:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from None
        gpu = definition.resources.gpu_config.gpu_type
        if gpu and gpu not in _GPUS:
            raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid GPU type: {gpu!r}")
        for text in (*tags, *tags.values()):
            if not _TAG.fullmatch(text):
                raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid tag: {text!r}")
        names = {(box.app_id, box.name) for box in self.running()}
        if definition.name and (app_id, definition.name) in names:
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox {definition.name!r} already exists")
        box = Box(kind, app_id, definition, tags)
        self._boxes[box.id] = box  # listed and found by its name before it is scheduled
        making = asyncio.create_task(self._make(box, env))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        await asyncio.shield(making)  # a client that goes away does not stop it
        return box

    async def _make(self, box: Box, env: dict[str, str]) -> None:
        resources, access = box.definition.resources, box.definition.network_access
        is_open = access.network_access_type == api_pb2.NetworkAccess.OPEN
        try:
            machine = await Machine.start(
                self._session,
                env=env,
                network="internet" if is_open else "none",
                memory_mb=resources.memory_mb_max or None,
                snapshot=self.snapshots.get(box.definition.image_id),
                pids=4096,
            )
        except BaseException:
            await self.finish(box, _Result(status=_Result.GENERIC_STATUS_INTERNAL_FAILURE))
            raise
        if box.result is not None:  # it was ended while it started
            await machine.stop()
            return
        box.machine = machine
        argv = tuple(box.definition.entrypoint_args)
        try:
            entrypoint = await self.spawn(box, "entrypoint", argv, {}, None)
        except MachineEnded:
            return
        until = (self._until_exit(box, entrypoint), self._until_timeout(box))
        box.tasks += [asyncio.create_task(each) for each in until]
        box.ready.set()

    async def spawn(
        self,
        box: Box,
        exec_id: str,
        argv: tuple[str, ...],
        env: dict[str, str],
        size: tuple[int, int] | None,
        cwd: str | None = None,
    ) -> Exec:
        """Start a command, or return the one that was already started with this id."""
        async with box.spawning:  # the request may be repeated before the command has started
            if exec_id not in box.execs:
                assert box.machine is not None
                env = {"HOME": "/root", **env}
                process = await box.machine.spawn(argv, env=env, cwd=cwd, pty=size)
                run = box.execs[exec_id] = Exec(process)
                run.pumps = [
                    asyncio.create_task(_pump(process.stdout, run.stdout)),
                    asyncio.create_task(_pump(process.stderr, run.stderr)),
                    asyncio.create_task(_await_exit(run)),
                ]
        return box.execs[exec_id]

    def forget_commands(self) -> None:
        """Drop all commands from the workers; their processes keep running."""
        for box in self.running():
            box.execs.clear()

    async def finish(self, box: Box, result: Any) -> None:
        """End a sandbox and all its processes; do nothing if it has ended."""
        if box.result is not None:
            return
        box.result = result
        if self.settings.linger:
            await asyncio.sleep(self.settings.linger)
        box.ended.set()
        if box.machine is not None:
            await box.machine.stop()
        pumps = (pump for run in box.execs.values() for pump in run.pumps)
        for task in (*box.tasks, *box.work, *pumps):
            if task is not asyncio.current_task():
                task.cancel()

    async def end(self, sandbox_id: str) -> None:
        """End a sandbox, as another client's `terminate` would."""
        await self.finish(self.find(sandbox_id), _Result(status=_Result.GENERIC_STATUS_TERMINATED))

    async def leave(self, sandbox_id: str, status: int = 1) -> None:
        """End a sandbox as if its first process had exited with `status`; 137 means that it was killed."""
        kind = _Result.GENERIC_STATUS_FAILURE if status else _Result.GENERIC_STATUS_SUCCESS
        await self.finish(self.find(sandbox_id), _Result(status=kind, exitcode=status))

    async def kill_all(self) -> None:
        for box in self.running():
            await self.end(box.id)
        if self._making:
            await asyncio.wait(self._making)

    async def aclose(self) -> None:
        await self.kill_all()
        await self.snapshots.aclose()

    async def _until_exit(self, box: Box, entrypoint: Exec) -> None:
        await entrypoint.ended.wait()
        status = await entrypoint.process.wait()
        await self.leave(box.id, status if status >= 0 else 128 - status)

    async def _until_timeout(self, box: Box) -> None:
        await asyncio.sleep(box.timeout)
        await self.finish(box, _Result(status=_Result.GENERIC_STATUS_TIMEOUT))


def environment(sources: Any) -> dict[str, str]:
    return {key: text for each in sources for key, text in each.env.contents.items()}


async def _pump(source: Any, into: Stdio) -> None:
    async for chunk in source:
        await into.feed(chunk)
    await into.end()


async def _await_exit(run: Exec) -> None:
    await run.process.wait()
    run.ended.set()
