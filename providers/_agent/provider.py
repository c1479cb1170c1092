"""The provider half that every agent-based backend shares: commands, files, lifetime, logs."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import SandboxError, SandboxTerminatedError
from sandboxkit.provider import Output, Provider
from sandboxkit.providers._agent.client import AgentClient, ConnectionEndedError
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.types import Command, FileInfo

__all__ = ["AgentProvider"]


class AgentProvider(Provider):
    """`Provider` minus `create`, `list`, `delete` and `_connect`, which a subclass implements.

    A subclass's `create` starts `BINARY *agent_flags(spec, ...)` as PID 1 of the sandbox,
    gets the byte stream to its stdin and stdout (its stderr is for fatal errors only), calls
    `await self._attach(id, stream, config_of(spec))` and returns the id. If it fails or is
    cancelled afterwards, it calls `await self._forget(id)` and removes the sandbox.
    Its `delete` calls `await self._forget(id)` and then ends the sandbox.
    A subclass with an `__init__` of its own calls `super().__init__()`.
    """

    def __init__(self) -> None:
        self._clients: dict[str, AgentClient] = {}
        self._connecting: dict[str, anyio.Lock] = {}

    @abstractmethod
    async def _connect(self, sandbox_id: str) -> ByteStream:
        """Open a further stream to a running sandbox's agent: its listening socket.

        Called when this process has no live connection to it: for a sandbox made by another
        process, a detached one, or one whose connection broke.
        Raised: `SandboxNotFoundError` when there is no such sandbox or it is gone,
        `ProviderUnavailableError`, `AuthenticationError`.
        """

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        """The error for calls in flight when the agent's stream ended; override to say more.

        `reason` is what the agent said ("lifetime", "shutdown", ...), "" if it said nothing,
        which means that it was killed (out of memory, `delete`, the daemon) or that the stream broke.
        """
        said = {"": "it was killed, or the connection to it broke", "lifetime": "lifetime reached"}
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended: {said.get(reason, reason)}",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _attach(self, sandbox_id: str, stream: ByteStream, config: AgentConfig) -> AgentClient:
        """Become the owner: shake hands over the agent's own stdin and stdout, and keep it.

        Returns when commands can run; the workdir exists and the main command has started.
        The stream is the sandbox's lifeline: closing it ends a sandbox that is not detached.
        It is closed when this fails or is cancelled.
        Raised: `SandboxStartError` when the agent refuses or its stream ends.
        """
        raise NotImplementedError

    async def _client(self, sandbox_id: str) -> AgentClient:
        """The live connection to a sandbox, made with `_connect` if there is none yet."""
        raise NotImplementedError

    async def _forget(self, sandbox_id: str) -> None:
        """Close the connection to a sandbox, if there is one: ends it if owned and not detached.

        Idempotent; returns without waiting for the sandbox's end.
        """
        raise NotImplementedError
