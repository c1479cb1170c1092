"""ReplayProvider: serves every call from a recording, without a backend."""

import builtins
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream

from sandboxkit._first_command import FirstCommand
from sandboxkit.errors import (
    ConfigurationError,
    ReplayMismatchError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, PortListener
from sandboxkit.recording._archive import Manifest
from sandboxkit.recording._content import (
    Encoder,
    Json,
    Secrets,
    cut,
    data_of,
    error_of,
    value_of,
)
from sandboxkit.recording._file import folder_of, read
from sandboxkit.recording._record import command_arguments
from sandboxkit.recording._relay import Relay, compared
from sandboxkit.recording._script import POLLED, Renames, Script, difference, flat
from sandboxkit.recording._stdin import ReplayedInput
from sandboxkit.types import (
    Command,
    Exit,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    SnapshotKind,
)

_GONE = (SandboxNotFoundError, SandboxTerminatedError)


class ReplayProvider(Relay):
    """A provider that serves calls from the recording `path`, in the recorded order of each sandbox.

    A call that was not recorded, or not at this place, raises ReplayMismatchError, which shows the
    difference. Output arrives as fast as it is read; a call that was cancelled in the recording never
    returns. Ports are not replayed. Raises ConfigurationError for a file that is not a recording.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        lines = read(path)
        header = next(lines)
        facts = ("name", "on_this_machine", "native_egress")
        vars(self).update({name: header[name] for name in facts})
        self._path, self._folder = str(path), folder_of(Path(path))
        self._encoder = Encoder(Secrets())
        calls = [line for line in lines if "call" in line]
        calls.sort(key=lambda call: int(call["began"]))
        self._renames = Renames(calls)
        self._refused = [call for call in calls if call["call"] == "check"]
        self._creations = [call for call in calls if call["call"] == "create"]
        mine: dict[str | None, list[Json]] = {None: []}
        for call in calls:
            if call["call"] not in ("check", "create"):
                mine.setdefault(call["sandbox"], []).append(call)
        self._scripts = {sandbox_id: Script(each) for sandbox_id, each in mine.items()}
        made = {call.get("result") for call in self._creations}
        self._alive: dict[str, SandboxSpec] = {
            each: SandboxSpec() for each in mine if each is not None and each not in made
        }

    def _load(self, digest: str) -> bytes:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ReplayMismatchError(
                f"the recording {self._path!r} names {digest[:100]!r}, which is no digest of a content"
            )
        try:
            return (self._folder / digest).read_bytes()
        except OSError as error:
            raise ReplayMismatchError(
                f"the replay of {self._path!r} needs {str(self._folder / digest)!r}: {error.strerror}; keep "
                "this folder together with the recording"
            ) from error

    # Any: a call's arguments.
    def _take(self, name: str, sandbox_id: str | None, arguments: Mapping[str, Any]) -> Json:
        """Take the next recorded call that equals this one. Raises ReplayMismatchError if there is none."""
        given = self._encoder.value(compared(arguments))
        script = self._script(sandbox_id)
        call = script.take(name, given, self._renames)
        if call is None and sandbox_id is not None and not script.used:
            call = self._exchanged(name, sandbox_id, given)
        if call is None:
            raise self._mismatch(name, sandbox_id, given, script.open_calls())
        if lost := call.get("lost"):
            raise ReplayMismatchError(f"{name} cannot be replayed from {self._path!r}: {lost}")
        return call

    def _script(self, sandbox_id: str | None) -> Script:
        if sandbox_id is not None and sandbox_id not in self._alive:
            raise SandboxNotFoundError(
                f"no sandbox {sandbox_id!r}; it may have ended",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        return self._scripts.setdefault(sandbox_id, Script([]))

    def _exchanged(self, name: str, sandbox_id: str, given: Json) -> Json | None:
        """Swap scripts with an unused sandbox of equal options whose script has this call; return the call.

        This is needed because sandboxes that start concurrently may start in another order than recorded.
        Return None if there is no such sandbox.
        """
        mine = self._encoder.spec(self._alive[sandbox_id])
        made = {call["result"]: call for call in self._creations if "result" in call}
        others = [each for each, spec in self._alive.items() if self._encoder.spec(spec) == mine]
        others += [each for each, call in made.items() if call["arguments"]["spec"] == mine]
        for other in others:
            script = self._scripts.get(other)
            if script is None or script.used or other == sandbox_id:
                continue
            if (call := script.take(name, given, self._renames)) is not None:
                own = self._scripts.setdefault(sandbox_id, Script([]))
                self._scripts[sandbox_id], self._scripts[other] = script, own
                return call
        return None

    def _mismatch(
        self, name: str, sandbox_id: str | None, given: Json, due: builtins.list[Json]
    ) -> ReplayMismatchError:
        where = "" if sandbox_id is None else f" in sandbox {sandbox_id!r}"
        text = f"the replay of {self._path!r} has no such {name}{where} at this place"
        alike = [call for call in due if call["call"] == name]
        if alike:
            text += f":\n{difference(alike[0]['arguments'], given)}"
        else:
            names = ", ".join(sorted({call["call"] for call in due})) or "the recording's end"
            text += f": {flat(given)[:160]}; recorded next: {names}"
        return ReplayMismatchError(
            f"{text}\nMake a new recording if the program has changed.",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    # Any: what the call returns.
    async def _end(self, call: Json, script: Script, sandbox_id: str | None, returns: Any) -> Any:
        """End a call as it ended in the recording: return its result, raise its error, or wait forever."""
        try:
            if call.get("cancelled"):
                await anyio.sleep_forever()
            await script.until(call["ended"])
        finally:
            script.over(call)
        if "error" in call:
            error = error_of(call["error"])
            if isinstance(error, _GONE) and sandbox_id is not None:
                self._alive.pop(sandbox_id, None)
            raise error
        return value_of(returns, call.get("result"), self._load)

    # Any: arguments and results of all calls.
    async def call(
        self, returns: Any, name: str, sandbox_id: str | None, /, **arguments: Any
    ) -> Any:
        """Return the result of the recorded call, or raise its error."""
        if name in POLLED:
            return self._polled(returns, name, sandbox_id)
        call = self._take(name, sandbox_id, arguments)
        return await self._end(call, self._script(sandbox_id), sandbox_id, returns)

    # Any: what the call returns.
    def _polled(self, returns: Any, name: str, sandbox_id: str | None) -> Any:
        if name == "ready":
            return sandbox_id in self._alive
        recorded = self._script(sandbox_id).polled(name)
        if recorded is None and name == "get" and sandbox_id is not None:
            return self._info(sandbox_id)
        if recorded is None and name == "usage":
            return None
        if recorded is None:
            raise self._mismatch(name, sandbox_id, {}, [])
        if "error" in recorded:
            raise error_of(recorded["error"])
        return value_of(returns, recorded.get("result"), self._load)

    def _info(self, sandbox_id: str) -> SandboxInfo:
        spec = self._alive[sandbox_id]
        return SandboxInfo(sandbox_id, self.name, SandboxState.RUNNING, spec.tags, image=spec.image)

    def check(self, spec: SandboxSpec) -> None:
        """See `Provider.check`; it raises the recorded error for a spec that was refused."""
        self._encoder.secrets.add(spec.secrets.values())
        form = self._encoder.spec(spec)
        for call in self._refused:
            if call["arguments"]["spec"] == form:
                raise error_of(call["error"])

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        """See `Provider.check_snapshot`; it accepts every spec, because refusals are not recorded."""

    def check_pause(self) -> None:
        """See `Provider.check_pause`; it accepts every pause."""

    async def create(self, spec: SandboxSpec) -> str:
        """See `Provider.create`."""
        return await self._create(spec, None)

    async def create_for(self, spec: SandboxSpec, first: FirstCommand) -> str:
        """See `Provider.create_for`."""
        return await self._create(spec, first)

    async def _create(self, spec: SandboxSpec, first: FirstCommand | None) -> str:
        self._encoder.secrets.add(spec.secrets.values())
        form = flat(self._encoder.spec(spec))
        for call in self._creations:
            if flat(call["arguments"]["spec"]) == form:
                break
        else:
            left = self._creations[0]["arguments"] if self._creations else {}
            raise ReplayMismatchError(
                f"the replay of {self._path!r} has no such sandbox any more"
                f":\n{difference(left, {'spec': self._encoder.spec(spec)})}",
                provider=self.name,
            )
        self._creations.remove(call)
        if first is not None and call.get("sent"):
            first.claim()
        if call.get("cancelled"):
            await anyio.sleep_forever()
        if "error" in call:
            raise error_of(call["error"])
        sandbox_id: str = call["result"]
        self._alive[sandbox_id] = spec
        return sandbox_id

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        """See `Provider.exec`."""
        call = self._take("exec", sandbox_id, command_arguments(command))
        return await self._play(call, sandbox_id, command, output)

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        """See `Provider.run_python`."""
        call = self._take("run_python", sandbox_id, {"code": code, **command_arguments(command)})
        return await self._play(call, sandbox_id, command, output)

    async def _play(self, call: Json, sandbox_id: str, command: Command, output: Output) -> Exit:
        script, pieces = self._script(sandbox_id), self._outputs(call)
        interactive = command.stdin is not None
        try:
            async with ReplayedInput(command.stdin, self._encoder.secrets, self._renames) as stdin:
                for at, kind, content in call.get("events", ()):
                    if kind == "stdin":
                        await stdin.expect(data_of(content, self._load))
                        script.happened(at)
                    elif kind == "eof":
                        await stdin.expect_end()
                        script.happened(at)
                    elif kind in ("stdout", "stderr"):
                        await script.until(at)
                        # Earlier input may have renamed tokens in the output.
                        data = self._outputs(call)[at] if interactive else pieces[at]
                        await output(kind, data)
                end: Exit = await self._end(call, script, sandbox_id, Exit)
                return end
        finally:
            script.over(call)

    def _outputs(self, call: Json) -> dict[int, bytes]:
        """Return the pieces of a call's output by logical time, with the random tokens of this run."""
        found: dict[int, bytes] = {}
        for name in ("stdout", "stderr"):
            mine = [(at, each) for at, kind, each in call.get("events", ()) if kind == name]
            pieces = [data_of(content, self._load) for _, content in mine]
            renamed = cut(self._renames.translate(b"".join(pieces)), pieces)
            found.update(zip([at for at, _ in mine], renamed, strict=True))
        return found

    async def delete(self, sandbox_id: str) -> None:
        """See `Provider.delete`."""
        self._alive.pop(sandbox_id, None)
        self._scripts.setdefault(sandbox_id, Script([])).deleted()

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See `Provider.list`; it lists the sandboxes of the replay."""
        for sandbox_id, spec in tuple(self._alive.items()):
            if tags.items() <= spec.tags.items():
                yield self._info(sandbox_id)

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        """See `Provider.list_snapshots`."""
        call = self._take("list_snapshots", None, {"tags": tags})
        for info in await self._end(call, self._script(None), None, builtins.list[SnapshotInfo]):
            yield info

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        """See `Provider.put_archive`."""
        with Manifest(self._encoder.secrets) as manifest:
            async for _ in manifest.passed(tar):
                pass
            members = manifest.members()
        call = self._take("put_archive", sandbox_id, {"path": path, "members": members})
        await self._end(call, self._script(sandbox_id), sandbox_id, None)

    async def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """See `Provider.get_archive`."""
        call = self._take("get_archive", sandbox_id, {"path": path})
        for _, _, content in call.get("events", ()):
            yield data_of(content, self._load)
        await self._end(call, self._script(sandbox_id), sandbox_id, None)

    async def connect(self, sandbox_id: str, port: int) -> ByteStream:
        """Raise ConfigurationError, because connections are not recorded."""
        raise ConfigurationError(
            f"port {port}: connections are not recorded, so a replay cannot connect"
        )

    async def listen(self, sandbox_id: str, port: int) -> PortListener:
        """Listen on a port to which nothing ever connects."""
        return _SilentListener(port)


class _SilentListener(PortListener):
    """A port of a replayed sandbox, to which no program ever connects."""

    async def accept(self) -> ByteStream:
        """Wait until the listener is closed."""
        await self._closed.wait()
        raise anyio.ClosedResourceError

    def __init__(self, port: int) -> None:
        super().__init__(port or 1)
        self._closed = anyio.Event()

    async def aclose(self) -> None:
        """See `PortListener.aclose`."""
        self._closed.set()
