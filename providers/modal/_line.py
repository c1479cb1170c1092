"""A line to a shell of ours: the standard input and output of a command that Modal runs."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import modal.exception

from sandboxkit.errors import SandboxError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.providers._hosted.kept.lines import LineEnded
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
        self._chunks: AsyncGenerator[bytes, None] = aiter(process.stdout)
        self._next: asyncio.Task[bytes | None] | None = None
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

    async def read(self) -> bytes:
        chunk = await self._chunk()
        if chunk is None:
            status = await self._account.call(
                self._process.wait.aio, what="follow a command", sandbox_id=self._sandbox_id
            )
            raise LineEnded(status)
        return chunk

    async def ping(self, mark: str) -> None:
        await self.write(f"p {mark}\n".encode())

    async def end(self) -> None:
        with anyio.move_on_after(_END_SECONDS):
            try:
                await self.write(b"q\n")
                while await self._chunk() is not None:
                    pass
            except SandboxError:
                pass  # it ended, or cannot be told to
        await self.close()

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        with anyio.move_on_after(_END_SECONDS):
            try:
                await self._chunks.aclose()
            except HANDLED:
                pass  # nothing of it is of interest any more

    async def _chunk(self) -> bytes | None:
        """What comes next, None at the end. Goes on where whoever waits for it is cancelled."""
        if self._next is None:
            self._next = asyncio.create_task(_next(self._chunks))
        await asyncio.wait([self._next])
        done, self._next = self._next, None
        self.heard = anyio.current_time()
        try:
            return done.result()
        except HANDLED as error:
            raise following(error, self._sandbox_id) from error

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


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(chunks, None)
