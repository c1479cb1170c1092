"""RecordingProvider: passes every call to another provider, and records the call and its result."""

import asyncio
import builtins
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Mapping
from typing import Any, TypeVar

from anyio.abc import ByteStream

from sandboxkit.provider import Box, FirstCommand, Output, PortListener, Provider
from sandboxkit.recording._archive import Manifest
from sandboxkit.recording._content import Encoder, Json, Secrets
from sandboxkit.recording._file import VERSION, Writer
from sandboxkit.recording._relay import Relay, RelayBox, compared
from sandboxkit.types import (
    Command,
    Exit,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SnapshotInfo,
    StdinItem,
    StreamName,
    Usage,
)

_T = TypeVar("_T")
_PASSED_ON = (
    "waiting",
    "check_snapshot",
    "confirm_snapshots",
    "mark_snapshot_used",
    "check_pause",
)
"""Calls that are not recorded: a replay uses nothing, waits for nothing and refuses nothing of its own."""
_MOST = 64 << 20
"""Limit (bytes) of one call's recorded input and output; a call with more cannot be replayed."""


class _Call:
    """A call in flight. Its events carry the recording's logical time, which orders them across calls."""

    def __init__(
        self, owner: "RecordingProvider", name: str, sandbox_id: str | None, arguments: Json
    ) -> None:
        self._owner = owner
        self._at, self._started = time.time(), time.monotonic()
        self.line: dict[str, Json] = {"call": name, "sandbox": sandbox_id, "began": owner.tick()}
        self.line["arguments"] = arguments
        self._events: list[tuple[int, str, bytes | list[int]]] = []
        self._size = 0

    def event(self, kind: str, data: bytes | list[int]) -> None:
        """Record a piece of input or output."""
        self._size += len(data)
        if self._size > _MOST:
            self.line["lost"] = f"the call had more than {_MOST >> 20} MiB of input and output"
            self._events.clear()
        else:
            self._events.append((self._owner.tick(), kind, data))

    async def input(self, stdin: AsyncIterable[StdinItem]) -> AsyncIterator[StdinItem]:
        """Yield the items of a command's input, and record them."""
        async for item in stdin:
            if isinstance(item, PtySize):
                self.event("size", [item.rows, item.cols])
            else:
                self.event("stdin", item)
            yield item
        self.event("eof", b"")

    def pieces(self) -> list[Json]:
        """Return the encoded events; secrets are masked in each stream as a whole."""
        encoder = self._owner.encoder
        masked: dict[str, list[bytes]] = {}
        for kind in {kind for _, kind, _ in self._events}:
            mine = [
                data for _, each, data in self._events if each == kind and isinstance(data, bytes)
            ]
            masked[kind] = encoder.secrets.mask_pieces(mine)[::-1]
        return [
            [at, kind, encoder.content(masked[kind].pop()) if isinstance(data, bytes) else data]
            for at, kind, data in self._events
        ]

    def write(self, outcome: Json) -> None:
        """Write the call and its outcome to the recording."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self._at))
        self.line |= {"ended": self._owner.tick(), "at": f"{moment}.{int(self._at % 1 * 1000):03}Z"}
        self.line["seconds"] = round(time.monotonic() - self._started, 6)
        if self._events:
            self.line["events"] = self.pieces()
        self._owner.writer.line({**self.line, **outcome})


class _Shadow(FirstCommand):
    """The first command of a start as the inner provider receives it: its input is recorded."""

    def __init__(self, outer: FirstCommand, command: Command) -> None:
        super().__init__(command)
        self._outer = outer

    def claim(self) -> bool:
        """See `FirstCommand.claim`."""
        return self._outer.claim()

    def refuted(self) -> None:
        """See `FirstCommand.refuted`."""
        self._outer.refuted()


# Any: a call's arguments.
def command_arguments(command: Command) -> dict[str, Any]:
    """Return a command's fields as the recording stores them; the input is recorded as events instead."""
    known = {each.name: getattr(command, each.name) for each in dataclasses.fields(command)}
    given = {name: each for name, each in known.items() if each not in (None, {})}
    return {**given, "stdin": command.stdin is not None}


class RecordingProvider(Relay):
    """A provider that passes every call to `inner` and records it in the file `path`.

    The file has a line per call: when it began and ended, its arguments, its input and output in order,
    and its result or error. Contents above 64 KiB are in the folder `path` + ".files". The values of
    `secrets` are replaced by asterisks. Data on ports is not recorded. With `owned`, `aclose` also
    closes `inner`. Raises ConfigurationError if the file exists.
    """

    def __init__(
        self, inner: Provider, path: str | os.PathLike[str], *, owned: bool = False
    ) -> None:
        # The contract's class variables take the values of the recorded provider.
        facts = {"name": inner.name, "on_this_machine": inner.on_this_machine}
        facts["native_egress"] = inner.native_egress
        vars(self).update(facts, **{name: getattr(inner, name) for name in _PASSED_ON})
        self.writer = Writer(path, {"recording": VERSION, **facts})
        self.encoder = Encoder(Secrets(), self.writer.keep)
        self._inner, self._owned, self._clock = inner, owned, 0
        self.commands: dict[int, tuple[_Call, Command]] = {}

    def tick(self) -> int:
        """Advance the recording's logical clock and return its time."""
        self._clock += 1
        return self._clock

    def begin(self, name: str, sandbox_id: str | None, arguments: Mapping[str, Any]) -> _Call:
        """Return the record of a call that begins now."""
        return _Call(self, name, sandbox_id, self.encoder.value(compared(arguments)))

    async def recorded(self, call: _Call, running: Awaitable[_T], *, quiet: bool = False) -> _T:
        try:
            result = await running
        except asyncio.CancelledError:
            call.write({"cancelled": True})
            raise
        except Exception as error:
            call.write({"error": self.encoder.error(error)})
            raise
        call.write({} if quiet else {"result": self.encoder.value(result)})
        return result

    def box(self, sandbox_id: str) -> "RecordingBox":
        """See `Provider.box`."""
        return RecordingBox(self, self._inner.box(sandbox_id))

    # Any: arguments and results of all calls.
    async def call(self, returns: Any, name: str, box: RelayBox | None, /, **arguments: Any) -> Any:
        """Call the method `name` of the inner provider or box, and record the call; see `Relay.call`."""
        call = self.begin(name, None if box is None else box.id, arguments)
        inner = box.inner if isinstance(box, RecordingBox) else self._inner
        running = getattr(inner, name)(**arguments)
        if name == "public_url":  # its headers hold a token
            running = self._masked(running)
        return await self.recorded(call, running, quiet=returns is None)

    async def _masked(self, running: Awaitable[Any]) -> Any:
        url = await running
        self.encoder.secrets.add(url.headers.values())
        return url

    def check(self, spec: SandboxSpec) -> None:
        """See `Provider.check`; only a refusal is recorded."""
        self.encoder.secrets.add(spec.secrets.values())
        try:
            self._inner.check(spec)
        except Exception as error:
            call = self.begin("check", None, {"spec": spec})
            call.write({"error": self.encoder.error(error)})
            raise

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> Box:
        """See `Provider.create`."""
        self.encoder.secrets.add(spec.secrets.values())
        call = self.begin("create", None, {"spec": spec})
        shadow: _Shadow | None = None
        if first is not None:
            begun = self.commands[id(first.command)] = self.command("exec", None, first.command, {})
            shadow = _Shadow(first, begun[1])
        made: builtins.list[Box] = []

        async def create() -> str:
            made.append(await self._inner.create(spec, shadow))
            return made[0].id

        try:
            await self.recorded(call, create())
        except BaseException:
            if first is not None:
                self.commands.pop(id(first.command), None)
            raise
        finally:
            if first is not None:
                call.line["sent"] = first.sent
        return RecordingBox(self, made[0])

    # Any: the arguments besides the command's.
    def command(
        self, name: str, sandbox_id: str | None, command: Command, more: Mapping[str, Any]
    ) -> tuple[_Call, Command]:
        call = self.begin(name, sandbox_id, {**more, **command_arguments(command)})
        if command.stdin is not None:
            command = dataclasses.replace(command, stdin=call.input(command.stdin))
        return call, command

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See `Provider.list`; the call is not recorded, because a replay knows its sandboxes."""
        async for info in self._inner.list(tags):
            yield info

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        """See `Provider.list_snapshots`."""
        call = self.begin("list_snapshots", None, {"tags": tags})

        async def listed() -> builtins.list[SnapshotInfo]:
            return [info async for info in self._inner.list_snapshots(tags)]

        for info in await self.recorded(call, listed()):
            yield info

    async def aclose(self) -> None:
        """Close the file, and the recorded provider if it is owned."""
        try:
            if self._owned:
                await self._inner.aclose()
        finally:
            self.writer.close()


class RecordingBox(RelayBox):
    """A box that passes every call to `inner` and records it."""

    def __init__(self, recorder: RecordingProvider, inner: Box) -> None:
        super().__init__(recorder, inner.id)
        self.recorder, self.inner = recorder, inner

    async def metered(self, *, last: bool = False) -> Usage | None:
        """See `Box.metered`; the call is not recorded, because a replay uses nothing."""
        return await self.inner.metered(last=last)

    async def exec(self, command: Command, output: Output) -> Exit:
        """See `Box.exec`."""
        begun = self.recorder.commands.pop(id(command), None)
        if begun is None:
            call, passed = self.recorder.command("exec", self.id, command, {})
        else:
            call, passed = begun
            call.line["sandbox"] = self.id
        running = self.inner.exec(passed, _recorded_output(call, output))
        return await self.recorder.recorded(call, running)

    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        """See `Box.run_python`."""
        call, passed = self.recorder.command("run_python", self.id, command, {"code": code})
        running = self.inner.run_python(code, passed, _recorded_output(call, output))
        return await self.recorder.recorded(call, running)

    async def delete(self) -> None:
        """See `Box.delete`."""
        await self.recorder.recorded(
            self.recorder.begin("delete", self.id, {}), self.inner.delete(), quiet=True
        )

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """See `Box.put_archive`; the names and digests of the members are recorded."""
        call = self.recorder.begin("put_archive", self.id, {"path": path})
        with Manifest(self.recorder.encoder.secrets) as manifest:

            async def put() -> None:
                try:
                    await self.inner.put_archive(path, manifest.passed(tar))
                finally:
                    call.line["arguments"]["members"] = manifest.members()

            await self.recorder.recorded(call, put(), quiet=True)

    async def get_archive(self, path: str) -> AsyncGenerator[bytes, None]:
        """See `Box.get_archive`; the whole archive is recorded."""
        call = self.recorder.begin("get_archive", self.id, {"path": path})
        outcome: Json = {"cancelled": True}
        try:
            async with contextlib.aclosing(self.inner.get_archive(path)) as tar:
                async for chunk in tar:
                    call.event("tar", chunk)
                    yield chunk
            outcome = {}
        except GeneratorExit:
            outcome = {"closed": True}
            raise
        except Exception as error:
            outcome = {"error": self.recorder.encoder.error(error)}
            raise
        finally:
            call.write(outcome)

    async def connect(self, port: int) -> ByteStream:
        """See `Box.connect`; the connection is not recorded."""
        return await self.inner.connect(port)

    async def listen(self, port: int) -> PortListener:
        """See `Box.listen`; its connections are not recorded."""
        return await self.inner.listen(port)


def _recorded_output(call: _Call, output: Output) -> Output:
    async def recorded(name: StreamName, data: bytes) -> None:
        call.event(name, data)
        await output(name, data)

    return recorded


RecordingProvider.box_type = RecordingBox
