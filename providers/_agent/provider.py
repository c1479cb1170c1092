"""The provider half that every agent-based backend shares: commands, files, lifetime, logs."""

import errno
import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    ConfigurationError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient, CallError, ConnectionEndedError
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.types import Command, FileInfo, Usage

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
        self._lifelines: dict[str, AgentClient] = {}
        """Owners' connections that `_prefer` has relieved of requests."""
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

        `reason` is what the agent said ("lifetime", a protocol error), "" if it said nothing,
        which means that it was killed (out of memory, `delete`, the daemon) or that the
        stream broke.
        """
        said = {
            "": "it was killed, or the connection to it broke",
            "lifetime": "its lifetime is over",
        }
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended: {said.get(reason, reason)}",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _attach(
        self, sandbox_id: str, stream: ByteStream, config: AgentConfig
    ) -> AgentClient:
        """Become the owner: shake hands over the agent's own stdin and stdout, and keep it.

        Returns when commands can run; the workdir exists and the main command has started.
        The stream is the sandbox's lifeline: closing it ends a sandbox that is not detached.
        It is closed when this fails or is cancelled.
        Raised: `SandboxStartError` when the agent refuses or its stream ends.
        """
        try:
            client = await AgentClient.start(stream, requests.hello(config))
        except ConnectionEndedError as error:
            raise SandboxStartError(
                f"sandbox {sandbox_id!r} did not start: {error}",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from error
        self._clients[sandbox_id] = client
        return client

    async def _prefer(self, sandbox_id: str, stream: ByteStream) -> None:
        """Send requests over this further stream, a faster one; the owner's stays the lifeline.

        A stream that the agent does not welcome is closed, and everything stays as it is.
        """
        try:
            client = await AgentClient.start(stream, requests.hello(None))
        except ConnectionEndedError:
            return
        self._lifelines[sandbox_id] = self._clients[sandbox_id]
        self._clients[sandbox_id] = client

    async def _client(self, sandbox_id: str) -> AgentClient:
        """The live connection to a sandbox, made with `_connect` if there is none yet."""
        client = self._clients.get(sandbox_id)
        if client is not None and client.ended is None:
            return client
        async with self._connecting.setdefault(sandbox_id, anyio.Lock()):
            client = self._clients.get(sandbox_id)
            if client is not None and client.ended is None:
                return client
            self._clients.pop(sandbox_id, None)
            stream = await self._connect(sandbox_id)
            try:
                client = await AgentClient.start(stream, requests.hello(None))
            except ConnectionEndedError as error:
                raise await self._why_ended(sandbox_id, error.reason) from error
            self._clients[sandbox_id] = client
            return client

    async def _forget(self, sandbox_id: str) -> None:
        """Close the connection to a sandbox, if there is one: ends it if owned and not detached.

        Idempotent; returns without waiting for the sandbox's end.
        """
        self._connecting.pop(sandbox_id, None)
        for clients in (self._clients, self._lifelines):
            client = clients.pop(sandbox_id, None)
            if client is not None:
                await client.aclose()

    @asynccontextmanager
    async def _call(self, sandbox_id: str, path: str | None = None) -> AsyncIterator[AgentClient]:
        """The connection for one request, whose errors become those of the SPI."""
        client = await self._client(sandbox_id)
        try:
            yield client
        except ConnectionEndedError as error:
            raise await self._why_ended(sandbox_id, error.reason) from error
        except CallError as error:
            if path is None:
                raise ConfigurationError(
                    str(error), provider=self.name, sandbox_id=sandbox_id
                ) from error
            kind = SandboxFileNotFoundError if error.errno == errno.ENOENT else SandboxFileError
            raise kind(str(error), path=path, provider=self.name, sandbox_id=sandbox_id) from error

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        async with self._call(sandbox_id) as client:
            return await requests.execute(client, command, output)

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        async with self._call(sandbox_id, path) as client:
            return await requests.read_file(client, path, max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        async with self._call(sandbox_id, path) as client:
            await requests.write_file(client, path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        async with self._call(sandbox_id, path) as client:
            await requests.put_archive(client, path, tar)

    async def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        async with self._call(sandbox_id, path) as client:
            archive = requests.get_archive(client, path)
            try:
                async for chunk in archive:
                    yield chunk
            finally:
                await archive.aclose()

    async def list_dir(self, sandbox_id: str, path: str) -> "list[FileInfo]":
        async with self._call(sandbox_id, path) as client:
            return await requests.list_dir(client, path)

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        async with self._call(sandbox_id, path) as client:
            return await requests.stat(client, path)

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        async with self._call(sandbox_id, path) as client:
            await requests.remove(client, path, recursive)

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        if not (lifetime > 0 and math.isfinite(lifetime)):
            raise ConfigurationError(f"lifetime {lifetime!r}: give a positive number of seconds")
        async with self._call(sandbox_id) as client:
            await requests.renew(client, lifetime)

    async def logs(self, sandbox_id: str) -> bytes:
        async with self._call(sandbox_id) as client:
            return await requests.logs(client)

    async def wait(self, sandbox_id: str) -> int:
        async with self._call(sandbox_id) as client:
            return await requests.wait(client)

    async def usage(self, sandbox_id: str) -> Usage:
        async with self._call(sandbox_id) as client:
            said = await requests.stats(client)
        used, exact = said.processor / 1e9, said.exact
        counted = self._processor_seconds(sandbox_id)
        if counted is not None:
            used, exact = max(counted - said.agent / 1e9, 0.0), True
        return Usage(
            processor_seconds=used,
            starved_seconds=said.starved / 1e9 if exact and said.starved is not None else None,
            processes=said.processes,
            memory_bytes=said.resident,
        )

    def _processor_seconds(self, sandbox_id: str) -> float | None:
        """What the host counts for the sandbox and its agent; None to believe the agent alone."""
        return None

    async def aclose(self) -> None:
        for sandbox_id in tuple(self._clients):
            await self._forget(sandbox_id)
