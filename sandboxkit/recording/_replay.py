"""ReplayProvider: serves every call from a recording, whose calls of one sandbox are a Script, without a backend."""

import builtins
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    ConfigurationError,
    ReplayMismatchError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Box, FirstCommand, Output, PortListener
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
from sandboxkit.recording._relay import Relay, RelayBox, compared
from sandboxkit.types import (
    Command,
    Exit,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    SnapshotKind,
    StdinItem,
)

POLLED = frozenset({"info", "ready", "usage", "logs", "diagnose"})
"""Calls whose number depends on timing; a replay repeats the last recorded result."""
_LOOSE = POLLED | {"delete"}
_TOKEN = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{16}|[0-9a-f]{32})(?![0-9a-f])")
_TOKEN_BYTES = re.compile(_TOKEN.pattern.encode())


class Renames:
    """Maps random tokens of the recorded program to the corresponding tokens of the replayed program.

    A token is a hexadecimal number of 16 or 32 digits. A token may differ if the recorded program created
    it, which is assumed if it first appeared in the program's arguments or input.
    """

    def __init__(self, calls: list[Json]) -> None:
        self._now: dict[str, str] = {}
        """Maps each recorded token to the token of this run."""
        self._fresh = _made_by_program(calls)

    def same(self, recorded: str, now: str) -> bool:
        """Return whether the texts are equal except for tokens that may differ; then map these for good."""
        if _TOKEN.sub("", recorded) != _TOKEN.sub("", now):
            return False
        renamed = dict(self._now)
        for old, new in zip(_TOKEN.findall(recorded), _TOKEN.findall(now), strict=True):
            if renamed.setdefault(old, new if old in self._fresh else old) != new:
                return False
        if len(set(renamed.values())) != len(renamed):
            return False
        self._now = renamed
        return True

    def translate(self, data: bytes) -> bytes:
        """Replace the random tokens in recorded bytes by those of this run."""
        names = self._now
        return _TOKEN_BYTES.sub(
            lambda found: names.get(found[0].decode(), found[0].decode()).encode(), data
        )


def _made_by_program(calls: list[Json]) -> set[str]:
    moments: list[tuple[int, bool, str]] = []
    for call in calls:
        moments.append((call["began"], True, flat(call["arguments"])))
        result = [call.get("result"), call.get("error")]
        moments.append((call["ended"], False, flat(result)))
        for at, kind, content in call.get("events", ()):
            moments.append((at, kind == "stdin", content if isinstance(content, str) else ""))
    seen: set[str] = set()
    fresh: set[str] = set()
    for _, by_program, text in sorted(moments):
        tokens = set(_TOKEN.findall(text)) - seen
        seen |= tokens
        if by_program:
            fresh |= tokens
    return fresh


def flat(value: Json) -> str:
    """Return a JSON value as a canonical text: equal values give equal texts."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{flat(each)}" for key, each in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(flat, value)) + "]"
    return repr(value)


class Script:
    """The recorded calls of one sandbox, in the order in which they began.

    A replayed call takes the first equal recorded call, unless a remaining call had ended before that
    one began. A recorded event waits until the program has done everything that it had done before the
    event.
    """

    def __init__(self, calls: list[Json]) -> None:
        self.calls = [call for call in calls if call["call"] not in POLLED]
        self._polled: dict[str, list[Json]] = {}
        for call in calls:
            if call["call"] in POLLED:
                self._polled.setdefault(call["call"], []).append(call)
        self.used = False
        """Whether a call was taken."""
        self._awaited = {call["began"] for call in self.calls}
        for call in self.calls:
            self._awaited.update(
                at for at, kind, _ in call.get("events", ()) if kind in ("stdin", "eof")
            )
        self._order = sorted(self._awaited, reverse=True)
        self._moved = anyio.Event()

    def polled(self, name: str) -> Json | None:
        """Return the next recorded call `name`, one of `POLLED`; at the end repeat the last one."""
        calls = self._polled.get(name, [])
        return calls.pop(0) if len(calls) > 1 else (calls[0] if calls else None)

    def open_calls(self) -> list[Json]:
        """Return the calls that may come next: those that began before any remaining call had ended."""
        found: list[Json] = []
        for call in self.calls:
            if call["call"] in _LOOSE:
                continue
            if any(each["ended"] < call["began"] for each in found):
                break  # the others began even later
            found.append(call)
        return found

    def take(self, name: str, arguments: Json, renames: Renames) -> Json | None:
        """Take the first recorded call that may come next and is equal; None if there is none."""
        now = flat(arguments)
        for call in self.open_calls():
            if call["call"] == name and renames.same(flat(call["arguments"]), now):
                self._taken(call)
                return call
        return None

    def deleted(self) -> None:
        """Record that the program deleted the sandbox."""
        for call in [call for call in self.calls if call["call"] == "delete"][:1]:
            self._taken(call)

    def _taken(self, call: Json) -> None:
        self.calls.remove(call)
        self.used = True
        self.happened(call["began"])

    def happened(self, at: int) -> None:
        """Record that the program has repeated its action of the logical time `at`."""
        self._awaited.discard(at)
        self._moved.set()
        self._moved = anyio.Event()

    def over(self, call: Json) -> None:
        """Record that a call has ended, so that nothing waits for the rest of its input."""
        for at, _, _ in call.get("events", ()):
            self._awaited.discard(at)
        self.happened(call["ended"])

    async def until(self, at: int) -> None:
        """Wait until the program has repeated all its actions before the logical time `at`."""
        while self._first(at) < at:
            await self._moved.wait()

    def _first(self, default: int) -> int:
        """Return the logical time of the first action that the program has yet to repeat, or `default`."""
        while self._order and self._order[-1] not in self._awaited:
            self._order.pop()
        return self._order[-1] if self._order else default


# Any: a call's arguments.
def difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return two lines for each argument that differs: the recorded value and the current one."""
    lines: list[str] = []
    for name in sorted({*recorded, *now}):
        old, new = flat(recorded.get(name)), flat(now.get(name))
        if old != new:
            shared = next(
                (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                min(len(old), len(new)),
            )
            start = max(0, shared - 40)
            lines.append(f"  {name} recorded: {_part(old, start)}")
            lines.append(f"  {name} now:      {_part(new, start)}")
    return "\n".join(lines)


def _part(text: str, start: int) -> str:
    return ("…" if start else "") + text[start : start + 160]


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
        self.encoder = Encoder(Secrets())
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

    def load(self, digest: str) -> bytes:
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
    def take(self, name: str, sandbox_id: str | None, arguments: Mapping[str, Any]) -> Json:
        """Take the next recorded call that equals this one. Raises ReplayMismatchError if there is none."""
        given = self.encoder.value(compared(arguments))
        script = self.script(sandbox_id)
        call = script.take(name, given, self._renames)
        if call is None and sandbox_id is not None and not script.used:
            call = self._exchanged(name, sandbox_id, given)
        if call is None:
            raise self._mismatch(name, sandbox_id, given, script.open_calls())
        if lost := call.get("lost"):
            raise ReplayMismatchError(f"{name} cannot be replayed from {self._path!r}: {lost}")
        return call

    def script(self, sandbox_id: str | None) -> Script:
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
        mine = _options(self.encoder.spec(self._alive[sandbox_id]))
        made = {call["result"]: call for call in self._creations if "result" in call}
        others = [
            each for each, spec in self._alive.items() if _options(self.encoder.spec(spec)) == mine
        ]
        others += [
            each for each, call in made.items() if _options(call["arguments"]["spec"]) == mine
        ]
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
    async def end(self, call: Json, script: Script, sandbox_id: str | None, returns: Any) -> Any:
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
        return value_of(returns, call.get("result"), self.load)

    def box(self, sandbox_id: str) -> "ReplayBox":
        """See `Provider.box`."""
        return ReplayBox(self, sandbox_id)

    # Any: arguments and results of all calls.
    async def call(self, returns: Any, name: str, box: RelayBox | None, /, **arguments: Any) -> Any:
        """Return the result of the recorded call, or raise its error."""
        sandbox_id = None if box is None else box.id
        if name in POLLED:
            return self._polled(returns, name, sandbox_id)
        call = self.take(name, sandbox_id, arguments)
        return await self.end(call, self.script(sandbox_id), sandbox_id, returns)

    # Any: what the call returns.
    def _polled(self, returns: Any, name: str, sandbox_id: str | None) -> Any:
        if name == "ready":
            return sandbox_id in self._alive
        recorded = self.script(sandbox_id).polled(name)
        if recorded is None and name == "info" and sandbox_id is not None:
            return self._info(sandbox_id)
        if recorded is None and name == "usage":
            return None
        if recorded is None:
            raise self._mismatch(name, sandbox_id, {}, [])
        if "error" in recorded:
            raise error_of(recorded["error"])
        return value_of(returns, recorded.get("result"), self.load)

    def _info(self, sandbox_id: str) -> SandboxInfo:
        spec = self._alive[sandbox_id]
        return SandboxInfo(sandbox_id, self.name, SandboxState.RUNNING, spec.tags, image=spec.image)

    def check(self, spec: SandboxSpec) -> None:
        """See `Provider.check`; it raises the recorded error for a spec that was refused."""
        self.encoder.secrets.add(spec.secrets.values())
        form = _options(self.encoder.spec(spec))
        for call in self._refused:
            if _options(call["arguments"]["spec"]) == form:
                raise error_of(call["error"])

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        """See `Provider.check_snapshot`; it accepts every spec, because refusals are not recorded."""

    def check_pause(self) -> None:
        """See `Provider.check_pause`; it accepts every pause."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> Box:
        """See `Provider.create`."""
        self.encoder.secrets.add(spec.secrets.values())
        form = _options(self.encoder.spec(spec))
        for call in self._creations:
            if _options(call["arguments"]["spec"]) == form:
                break
        else:
            left = self._creations[0]["arguments"] if self._creations else {}
            raise ReplayMismatchError(
                f"the replay of {self._path!r} has no such sandbox any more"
                f":\n{difference(left, {'spec': self.encoder.spec(spec)})}",
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
        return self.box(sandbox_id)

    async def play(self, call: Json, sandbox_id: str, command: Command, output: Output) -> Exit:
        script, pieces = self.script(sandbox_id), self._outputs(call)
        interactive = command.stdin is not None
        try:
            async with ReplayedInput(command.stdin, self.encoder.secrets, self._renames) as stdin:
                for at, kind, content in call.get("events", ()):
                    if kind == "stdin":
                        await stdin.expect(data_of(content, self.load))
                        script.happened(at)
                    elif kind == "eof":
                        await stdin.expect_end()
                        script.happened(at)
                    elif kind in ("stdout", "stderr"):
                        await script.until(at)
                        # Earlier input may have renamed tokens in the output.
                        data = self._outputs(call)[at] if interactive else pieces[at]
                        await output(kind, data)
                end: Exit = await self.end(call, script, sandbox_id, Exit)
                return end
        finally:
            script.over(call)

    def _outputs(self, call: Json) -> dict[int, bytes]:
        """Return the pieces of a call's output by logical time, with the random tokens of this run."""
        found: dict[int, bytes] = {}
        for name in ("stdout", "stderr"):
            mine = [(at, each) for at, kind, each in call.get("events", ()) if kind == name]
            pieces = [data_of(content, self.load) for _, content in mine]
            renamed = cut(self._renames.translate(b"".join(pieces)), pieces)
            found.update(zip([at for at, _ in mine], renamed, strict=True))
        return found

    def deleted(self, sandbox_id: str) -> None:
        """Note that a sandbox has been deleted."""
        self._alive.pop(sandbox_id, None)
        self._scripts.setdefault(sandbox_id, Script([])).deleted()

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See `Provider.list`; it lists the sandboxes of the replay."""
        for sandbox_id, spec in tuple(self._alive.items()):
            if tags.items() <= spec.tags.items():
                yield self._info(sandbox_id)

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        """See `Provider.list_snapshots`."""
        call = self.take("list_snapshots", None, {"tags": tags})
        for info in await self.end(call, self.script(None), None, builtins.list[SnapshotInfo]):
            yield info


class ReplayBox(RelayBox):
    """A sandbox of a recording."""

    def __init__(self, replay: ReplayProvider, sandbox_id: str) -> None:
        super().__init__(replay, sandbox_id)
        self.replay = replay

    async def exec(self, command: Command, output: Output) -> Exit:
        """See `Box.exec`."""
        call = self.replay.take("exec", self.id, command_arguments(command))
        return await self.replay.play(call, self.id, command, output)

    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        """See `Box.run_python`."""
        call = self.replay.take("run_python", self.id, {"code": code, **command_arguments(command)})
        return await self.replay.play(call, self.id, command, output)

    async def delete(self) -> None:
        """See `Box.delete`."""
        self.replay.deleted(self.id)

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """See `Box.put_archive`."""
        with Manifest(self.replay.encoder.secrets) as manifest:
            async for _ in manifest.passed(tar):
                pass
            members = manifest.members()
        call = self.replay.take("put_archive", self.id, {"path": path, "members": members})
        await self.replay.end(call, self.replay.script(self.id), self.id, None)

    async def get_archive(self, path: str) -> AsyncGenerator[bytes, None]:
        """See `Box.get_archive`."""
        call = self.replay.take("get_archive", self.id, {"path": path})
        for _, _, content in call.get("events", ()):
            yield data_of(content, self.replay.load)
        await self.replay.end(call, self.replay.script(self.id), self.id, None)

    async def connect(self, port: int) -> ByteStream:
        """Raise ConfigurationError, because connections are not recorded."""
        raise ConfigurationError(
            f"port {port}: connections are not recorded, so a replay cannot connect"
        )

    async def listen(self, port: int) -> PortListener:
        """Listen on a port to which nothing ever connects."""
        return _SilentListener(port)


ReplayProvider.box_type = ReplayBox


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


_DIGITS = re.compile(rb"[0-9a-f]")


class ReplayedInput:
    """Reads a command's input and compares it. Use it in an `async with` block."""

    def __init__(
        self, items: AsyncIterable[StdinItem] | None, secrets: Secrets, renames: Renames
    ) -> None:
        self._items = None if items is None else aiter(items)
        self._secrets, self._renames = secrets, renames
        self._buffer = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    async def expect(self, recorded: bytes) -> None:
        """Read as many bytes as were recorded. Raises ReplayMismatchError if they differ."""
        while len(self._buffer) < len(recorded) and self._alike(recorded):
            if not await self._read():
                break
        now, self._buffer = self._buffer[: len(recorded)], self._buffer[len(recorded) :]
        masked = self._secrets.mask(now)
        if masked == recorded:
            return
        if not self._renames.same(recorded.decode("latin-1"), masked.decode("latin-1")):
            raise ReplayMismatchError(
                f"a command's input differs from the recording: recorded {recorded[:160]!r}, now "
                f"{masked[:160]!r}; make a new recording if the program has changed"
            )

    async def expect_end(self) -> None:
        """Read to the end of the input. Raises ReplayMismatchError if more comes."""
        while not self._buffer and await self._read():
            pass
        if self._buffer:
            raise ReplayMismatchError(
                "a command's input is longer than in the recording: it goes on with "
                f"{self._secrets.mask(self._buffer)[:160]!r}"
            )

    def _alike(self, recorded: bytes) -> bool:
        # The buffer may end within a token, so tokens are compared by their shape only.
        now = self._secrets.mask(self._buffer)
        return _DIGITS.sub(b"0", now) == _DIGITS.sub(b"0", recorded[: len(now)])

    async def _read(self) -> bool:
        if self._items is None:
            return False
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            return False
        if not isinstance(item, PtySize):
            self._buffer += item
        return True


def _options(spec: Json) -> str:
    """Return the options by which sandboxes are compared, as text: all but the tags."""
    return flat({name: value for name, value in spec.items() if name != "tags"})
