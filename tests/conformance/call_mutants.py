"""Providers whose commands, files and listings are wrong in one way each."""

import dataclasses
from collections.abc import AsyncIterable, AsyncIterator, Mapping

import anyio

from sandboxkit.provider import Output, StreamName
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.fake import _Box
from sandboxkit.types import Command, Ending, Exit, PtySize, SandboxInfo, SandboxSpec, StdinItem


class SaysNothing(FakeProvider):
    """No command has output."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        async def drop(stream: StreamName, chunk: bytes) -> None:
            pass

        return await super().exec(sandbox_id, command, drop)


class TrueFails(FakeProvider):
    """`true` exits with 1."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if command.argv == ("true",):
            return Exit(1, Ending.EXITED)
        return await super().exec(sandbox_id, command, output)


class WritesAsATerminal(FakeProvider):
    """Every line feed comes with a carriage return."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        async def text(stream: StreamName, chunk: bytes) -> None:
            await output(stream, chunk.replace(b"\n", b"\r\n"))

        return await super().exec(sandbox_id, command, text)


class MergesTheStreams(FakeProvider):
    """What is written to stderr is stdout."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        async def merge(stream: StreamName, chunk: bytes) -> None:
            await output("stdout", chunk)

        return await super().exec(sandbox_id, command, merge)


class CutsLongOutput(FakeProvider):
    """After 4 MiB the rest of the output is dropped."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        left = 4 << 20

        async def cut(stream: StreamName, chunk: bytes) -> None:
            nonlocal left
            await output(stream, chunk[:left])
            left -= len(chunk[:left])

        return await super().exec(sandbox_id, command, cut)


class RunsOneAtATime(FakeProvider):
    """Commands wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = anyio.Lock()

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        async with self._turn:
            return await super().exec(sandbox_id, command, output)


class GivesUpOnSilence(FakeProvider):
    """A command that says nothing for a second has ended."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        end = Exit(0, Ending.EXITED)
        with anyio.CancelScope() as scope:

            async def heard(stream: StreamName, chunk: bytes) -> None:
                scope.deadline = anyio.current_time() + 1
                await output(stream, chunk)

            end = await super().exec(sandbox_id, command, heard)
        return end


class IgnoresResizes(FakeProvider):
    """A terminal keeps its first size."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if command.stdin is not None:
            command = dataclasses.replace(command, stdin=_without_sizes(command.stdin))
        return await super().exec(sandbox_id, command, output)


class ReadsOldFiles(FakeProvider):
    """A file reads as it was when it was last written by a call."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[str, bytes] = {}

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        self._written[path] = data
        await super().write_file(sandbox_id, path, data, mode=mode)

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        return self._written.get(path, b"")


class ForgetsModes(FakeProvider):
    """A file's mode is not what was asked for."""

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        await super().write_file(sandbox_id, path, data, mode=None)


class ShowsSecrets(FakeProvider):
    """Secrets are among the tags."""

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list(tags):
            secrets = self._box(info.id).spec.secrets
            yield dataclasses.replace(info, tags={**info.tags, **secrets})


class ForgetsSecrets(FakeProvider):
    """Commands do not see the secrets."""

    async def create(self, spec: SandboxSpec) -> str:
        return await super().create(dataclasses.replace(spec, secrets={}))


class ReachesTheInternet(FakeProvider):
    """Whatever is connected to answers."""

    def _base_env(self, box: _Box) -> dict[str, str]:
        answers = "import socket\nsocket.create_connection = lambda *_: socket.socket()\n"
        (box.folder / "sitecustomize.py").write_text(answers)
        return {**super()._base_env(box), "PYTHONPATH": str(box.folder)}


class LivesTooLong(FakeProvider):
    """A lifetime is three times what was asked for."""

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        await super().renew(sandbox_id, 3 * lifetime)


class ListsEverything(FakeProvider):
    """Listing by tags gives every sandbox."""

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list({}):
            yield info


async def _without_sizes(items: AsyncIterable[StdinItem]) -> AsyncIterator[StdinItem]:
    async for item in items:
        if not isinstance(item, PtySize):
            yield item
