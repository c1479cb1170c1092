"""The connection to one terminal in a sandbox: a WebSocket on which bytes go both ways."""

import json

import aiohttp
import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError
from sandboxkit.providers._hosted.kept.lines import LineEnded, Said
from sandboxkit.providers.daytona._account import NAME

__all__ = ["Terminal"]

_PIECE = 32768
"""Daytona takes messages of at most 64 KiB."""
_END_SECONDS = 1.0


class Terminal:
    """The connection to a terminal, a `Line`."""

    def __init__(self, sandbox_id: str, socket: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._sandbox_id, self._socket = sandbox_id, socket
        self.heard = anyio.current_time()

    async def end(self) -> None:
        """Let our shell on the terminal end, and close the connection."""
        with anyio.move_on_after(_END_SECONDS):
            await self.write(b"q\n")
            try:
                while True:
                    await self.read()
            except (SandboxError, LineEnded):
                pass  # it ended, or cannot be told to
        await self.close()

    async def close(self) -> None:
        """Close the connection; what runs on the terminal goes on."""
        await self._socket.close()

    async def ping(self, mark: str) -> None:
        """Ask Daytona for a sign of life, which `read` returns as b""."""
        try:
            await self._socket.ping()
        except (aiohttp.ClientError, OSError):
            pass  # reading says it better

    async def send(self, data: bytes) -> bool:
        """Write; False where the connection had broken before, and nothing of it was sent."""
        try:
            await self._socket.send_bytes(data[:_PIECE])
        except (aiohttp.ClientError, OSError):
            return False
        await self.write(data[_PIECE:])
        return True

    async def write(self, data: bytes) -> None:
        """Write, as fast as the connection takes it; nothing once the terminal has ended."""
        try:
            for start in range(0, len(data), _PIECE):
                await self._socket.send_bytes(data[start : start + _PIECE])
        except (aiohttp.ClientError, OSError):
            pass

    async def read(self) -> Said:
        """Return what the terminal says next; raises LineEnded or a typed error."""
        message = await self._socket.receive()
        self.heard = anyio.current_time()
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                return "stdout", message.data
            case aiohttp.WSMsgType.TEXT:
                self._control(message.data)
                return "stdout", b""
            case aiohttp.WSMsgType.PING:
                await self._socket.pong(message.data)
                return "stdout", b""
            case aiohttp.WSMsgType.PONG:
                return "stdout", b""
            case aiohttp.WSMsgType.CLOSE:
                self._control(message.extra or "")
                reason = f"Daytona closed it ({message.data} {message.extra or ''})"
            case _:
                reason = str(self._socket.exception() or "it broke")
        raise OutcomeUnknownError(
            f"the connection to a command was lost: {reason}; run it again",
            provider=NAME,
            sandbox_id=self._sandbox_id,
        )

    def _control(self, text: str) -> None:
        try:
            said = json.loads(text)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        if said.get("status") == "error":
            raise ProviderUnavailableError(
                f"daytona could not run a command: {said.get('error')}",
                provider=NAME,
                sandbox_id=self._sandbox_id,
            )
        status = said.get("exitCode")
        if isinstance(status, int):
            raise LineEnded(status)
