"""A line to a shell of ours: the standard input and output of a command that Modal runs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import modal.exception

from sandboxkit.errors import SandboxError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.provider import StreamName
from sandboxkit.providers._hosted.kept.lines import LineEnded, Said
from sandboxkit.providers.modal._account import Account
from sandboxkit.providers.modal._errors import HANDLED, translate

__all__ = ["INPUT_PIECE", "ModalLine", "following"]

INPUT_PIECE = 1 << 20
"""Bytes that Modal takes in a call."""
_END_SECONDS = 1.0


class ModalLine:
    """See `Line`."""

    def __init__(self, account: Account, sandbox_id: str, process: Any) -> None:
        """`process`: what the SDK gives for a command of bytes; Any, as it types it as text too."""
        self._account, self._sandbox_id, self._process = account, sandbox_id, process
        self._said: asyncio.Queue[Said | SandboxError | None] = asyncio.Queue(maxsize=1)
        """What came, and then an error or None."""
        self._over = False
        self._readers = {
            "stdout": asyncio.create_task(self._read_all("stdout", aiter(process.stdout))),
            "stderr": asyncio.create_task(self._read_all("stderr", aiter(process.stderr))),
        }
        self._writing = anyio.Lock()
        self.heard = anyio.current_time()

    async def send(self, data: bytes) -> bool:
        async with self._writing:
            for start in range(0, len(data), INPUT_PIECE):
                self._process.stdin.write(data[start : start + INPUT_PIECE])
                taken = await self._account.call(
                    self._drain, what="write to a command", sandbox_id=self._sandbox_id
                )
                if not taken:
                    return False
        return True

    async def write(self, data: bytes) -> None:
        await self.send(data)

    async def read(self) -> Said:
        said = await self._said.get()
        self.heard = anyio.current_time()
        self._over = not isinstance(said, tuple)
        if isinstance(said, SandboxError):
            raise said
        if said is None:
            status = await self._account.call(
                self._process.wait.aio, what="follow a command", sandbox_id=self._sandbox_id
            )
            raise LineEnded(status)
        return said

    async def ping(self, mark: str) -> None:
        await self.write(f"p {mark}\n".encode())

    async def end(self) -> None:
        # First, because all streams may be taken that the connection can have.
        await _stop(self._readers["stderr"])
        if not self._over:
            with anyio.move_on_after(_END_SECONDS), contextlib.suppress(SandboxError):
                await self.write(b"q\n")
                while isinstance(await self._said.get(), tuple):
                    pass
        await self.close()

    async def close(self) -> None:
        for reader in self._readers.values():
            await _stop(reader)

    async def _read_all(self, name: StreamName, chunks: AsyncGenerator[bytes, None]) -> None:
        end: SandboxError | None = None
        try:
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    await self._said.put((name, chunk))
        except HANDLED as error:
            end = following(error, self._sandbox_id)
        await self._said.put(end)

    async def _drain(self) -> bool:
        try:
            await self._process.stdin.drain.aio()
        except modal.exception.ConflictError:
            return False  # the shell has ended
        return True


def following(error: Exception, sandbox_id: str) -> SandboxError:
    """The error to raise for one met while a command ran."""
    translated = translate(error, "follow a command", sandbox_id)
    if isinstance(translated, SandboxNotFoundError):
        translated = SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended under the command: its lifetime passed, "
            "it was stopped, or it ran out of memory",
            provider="modal",
            sandbox_id=sandbox_id,
        )
    return translated


async def _stop(reader: asyncio.Task[None]) -> None:
    reader.cancel()
    await asyncio.wait([reader], timeout=_END_SECONDS)
