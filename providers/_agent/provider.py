"""The provider half that every agent-based backend shares: commands, files, lifetime, logs."""

import asyncio
import errno
import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotCleanError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import (
    AgentClient,
    CallError,
    ConnectionEndedError,
    SilentError,
)
from sandboxkit.providers._agent.frames import NEAR, Windows
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.providers._agent.pulse import Progress
from sandboxkit.types import Command, Exit, FileInfo, Interpreter, SandboxState, Usage

__all__ = ["AgentProvider"]

_CONNECT_PATIENCE = 8.0
"""Seconds for a further connection to a sandbox that runs, its agent's first word included."""
_END_PATIENCE = 2.0
"""Seconds after the end of its agent's stream within which a backend knows that a sandbox ended."""


@dataclass(frozen=True, slots=True)
class _SoFar:
    """Seconds that a sandbox used since its start: `starved` is None where it is not known."""

    processor: float
    starved: float | None


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
        """Owners' connections: those that `_prefer` has relieved of requests, too."""
        self._boots: dict[str, bytes] = {}
        self._connecting: dict[str, asyncio.Task[AgentClient]] = {}
        self._progress: dict[str, Progress] = {}
        self._before: dict[str, _SoFar] = {}
        """What each sandbox had used when it was last reset."""

    @abstractmethod
    async def _connect(self, sandbox_id: str) -> ByteStream:
        """Open a further stream to a running sandbox's agent: its listening socket.

        Called when this process has no live connection to it: for a sandbox made by another
        process, a detached one, or one whose connection broke.
        Raised: `SandboxNotFoundError` when there is no such sandbox or it is gone,
        `ProviderUnavailableError`, `AuthenticationError`.
        """

    def _grace(self) -> float:
        """For how many seconds a further connection may be broken before what it runs ends.

        0 where a stream ends only with its client. Where streams break by themselves, a broken
        one is replaced by another of `_connect`; a client that died is noticed so much later.
        """
        return 0.0

    def _windows(self) -> Windows:
        """What may be under way on each stream: more where an answer takes its time."""
        return NEAR

    def _is_deleting(self, sandbox_id: str) -> bool:
        """Whether this provider is about to end the sandbox."""
        return False

    def _agent_pid(self, sandbox_id: str) -> int | None:
        """The agent's process on this machine, where it is on it and known."""
        return None

    def _starved(self, sandbox_id: str) -> bool:
        pid = self._agent_pid(sandbox_id)
        seen = self._progress.setdefault(sandbox_id, Progress())
        return pid is not None and seen.lives(pid)

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        """The error for calls in flight when the agent ended; override to say more.

        `reason` is what the agent said ("lifetime", a protocol error), "" if it said nothing,
        which means that it was killed (out of memory, `delete`, the daemon), or that it ended
        because its owner's stream broke.
        """
        said = {
            "": "its agent was killed, or lost its owner",
            "lifetime": "its lifetime is over",
        }
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended: {said.get(reason, reason)}",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _attach(
        self, sandbox_id: str, stream: ByteStream, config: AgentConfig, *, lifeline: bool = True
    ) -> AgentClient:
        """Become the owner: shake hands over the agent's own stdin and stdout, and keep it.

        Returns when commands can run; the workdir exists and the main command has started.
        The stream is the sandbox's lifeline: closing it ends a sandbox that is not detached.
        It is closed when this fails or is cancelled.
        Without `lifeline` the stream leads to the socket of an agent whose owner comes by that:
        it is one of `_connect`, and replaced by others for the time of `_grace`.
        Raised: `SandboxStartError` when the agent refuses, its stream ends, or it says nothing.
        """
        try:
            client = await AgentClient.start(
                stream,
                requests.hello(config, self._windows()),
                grace=0.0 if lifeline else self._grace(),
                reopen=None if lifeline else lambda: self._connect(sandbox_id),
                windows=self._windows(),
                starved=lambda: self._starved(sandbox_id),
            )
        except (ConnectionEndedError, SilentError) as error:
            raise SandboxStartError(
                f"sandbox {sandbox_id!r} did not start: {error}",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from error
        self._clients[sandbox_id] = client
        if lifeline:
            self._lifelines[sandbox_id] = client
        self._boots[sandbox_id] = client.boot
        return client

    async def _prefer(self, sandbox_id: str, stream: ByteStream) -> None:
        """Send requests over this further stream, a faster one; the owner's stays the lifeline.

        A stream that the agent does not welcome is closed, and everything stays as it is.
        """
        try:
            client = await AgentClient.start(
                stream,
                requests.hello(None),
                patience=_CONNECT_PATIENCE,
                starved=lambda: self._starved(sandbox_id),
            )
        except (ConnectionEndedError, SilentError):
            return
        if sandbox_id in self._lifelines:
            self._clients[sandbox_id] = client
        else:  # it was deleted meanwhile
            await client.aclose()

    async def _client(self, sandbox_id: str) -> AgentClient:
        """The live connection to a sandbox, made with `_connect` if there is none yet."""
        client = self._clients.get(sandbox_id)
        if client is not None and client.ended is None:
            return client
        task = self._connecting.get(sandbox_id)
        if task is None:
            # One attempt for all who wait: each of them would wait as long for one of its own.
            task = asyncio.create_task(self._connected(sandbox_id))
            self._connecting[sandbox_id] = task
            task.add_done_callback(lambda done: self._tried(sandbox_id, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not task.cancelled() or (current is not None and current.cancelling()):
                raise
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} was stopped while a connection to it was made",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from None

    def _tried(self, sandbox_id: str, task: "asyncio.Task[AgentClient]") -> None:
        if self._connecting.get(sandbox_id) is task:
            del self._connecting[sandbox_id]
        if not task.cancelled():
            task.exception()  # those who waited have it, if anybody still did

    async def _connected(self, sandbox_id: str) -> AgentClient:
        self._clients.pop(sandbox_id, None)
        try:
            with anyio.fail_after(_CONNECT_PATIENCE):
                stream = await self._connect(sandbox_id)
                client = await AgentClient.start(
                    stream,
                    requests.hello(None, self._windows()),
                    grace=self._grace(),
                    reopen=lambda: self._connect(sandbox_id),
                    windows=self._windows(),
                    starved=lambda: self._starved(sandbox_id),
                )
        except SandboxNotFoundError as error:
            owner = self._lifelines.get(sandbox_id)
            if owner is None or owner.ended is None:
                raise
            raise await self._why_ended(sandbox_id, owner.ended) from error  # it was ours
        except ConnectionEndedError as error:
            raise await self._why_broken(
                sandbox_id, None, error, "a connection to sandbox {!r} broke as it was made"
            ) from error
        except TimeoutError as error:
            raise ProviderUnavailableError(
                f"sandbox {sandbox_id!r} does not answer: no connection to it within "
                f"{_CONNECT_PATIENCE:g} s; it is paused, or its machine hangs",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from error
        if client.boot != self._boots.setdefault(sandbox_id, client.boot):
            await client.aclose()
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} was started again: what ran in it is gone",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        self._clients[sandbox_id] = client
        return client

    async def _forget(self, sandbox_id: str) -> None:
        """Close the connection to a sandbox, if there is one: ends it if owned and not detached.

        Idempotent; returns without waiting for the sandbox's end.
        """
        self._boots.pop(sandbox_id, None)
        self._progress.pop(sandbox_id, None)
        self._before.pop(sandbox_id, None)
        connecting = self._connecting.pop(sandbox_id, None)
        if connecting is not None:
            connecting.cancel()
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
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, sandbox_id, client, path) from error

    async def _explained(
        self,
        error: ConnectionEndedError | SilentError | CallError,
        sandbox_id: str,
        client: AgentClient,
        path: str | None,
        *,
        once: bool = False,
    ) -> SandboxError:
        """The error of the SPI for a request's.

        A request that must be carried out at most `once` leaves an unknown outcome where its
        answer is lost; any other one can be made again.
        """
        lost: type[OutcomeUnknownError] | type[ProviderUnavailableError] = (
            OutcomeUnknownError if once else ProviderUnavailableError
        )
        unknown = "; whether it ran, and how it ended, is not known" if once else ""
        if isinstance(error, ConnectionEndedError):
            broke = f"the connection to sandbox {{!r}} broke under a call{unknown}"
            return await self._why_broken(sandbox_id, client, error, broke, lost)
        if isinstance(error, SilentError):
            return lost(
                f"sandbox {sandbox_id!r} does not answer: {error}; it is paused, or its machine "
                f"hangs{unknown}",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        if path is None:
            return ConfigurationError(str(error), provider=self.name, sandbox_id=sandbox_id)
        kind = SandboxFileNotFoundError if error.errno == errno.ENOENT else SandboxFileError
        return kind(str(error), path=path, provider=self.name, sandbox_id=sandbox_id)

    async def _why_broken(
        self,
        sandbox_id: str,
        client: AgentClient | None,
        error: ConnectionEndedError,
        broke: str,
        lost: type[OutcomeUnknownError] | type[ProviderUnavailableError] = ProviderUnavailableError,
    ) -> SandboxError:
        """The error for a connection that ended: the sandbox's end, or else of class `lost`."""
        if client is not None and isinstance(client.why_ended, SandboxTerminatedError):
            return client.why_ended
        reason = error.reason or ("it was deleted" if self._is_deleting(sandbox_id) else "")
        if not await self._lives(sandbox_id, client, reason):
            return await self._why_ended(sandbox_id, reason)
        broken = lost(broke.format(sandbox_id), provider=self.name, sandbox_id=sandbox_id)
        if client is not None and client.why_ended is not None:
            broken.add_note(f"it could not be made again: {client.why_ended}")
        return broken

    async def _lives(self, sandbox_id: str, client: AgentClient | None, reason: str) -> bool:
        """Whether a sandbox outlived the connection to it. Its owner's says when it did not."""
        owner = self._lifelines.get(sandbox_id)
        if reason or (owner is not None and (owner is client or owner.ended is not None)):
            return False
        with anyio.move_on_after(_END_PATIENCE) as patience:
            while True:
                try:
                    info = await self.get(sandbox_id)
                except SandboxNotFoundError:
                    return False
                except SandboxError:
                    return True  # the backend itself does not answer
                if info.state is SandboxState.STOPPED:
                    return False
                await anyio.sleep(0.05)
        return patience.cancelled_caught

    async def ready(self, sandbox_id: str) -> bool:
        clients = [self._clients.get(sandbox_id), self._lifelines.get(sandbox_id)]
        if clients[0] is None:
            return await super().ready(sandbox_id)
        return all(client is None or client.ended is None for client in clients)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        return await self._execute(sandbox_id, command, output)

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        return await self._execute(sandbox_id, command, output, code)

    async def _execute(
        self, sandbox_id: str, command: Command, output: Output, code: str | None = None
    ) -> Exit:
        client = await self._client(sandbox_id)
        try:
            return await requests.execute(client, command, output, code)
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, sandbox_id, client, None, once=True) from error

    async def start_interpreter(self, sandbox_id: str, interpreter: Interpreter) -> None:
        async with self._call(sandbox_id) as client:
            await requests.start_interpreter(client, interpreter)

    async def reset(self, sandbox_id: str) -> None:
        async with self._call(sandbox_id) as client:
            left, used = await requests.reset(client)
        self._before[sandbox_id] = self._so_far(sandbox_id, used)
        if left:
            raise SandboxNotCleanError(
                f"sandbox {sandbox_id!r} cannot be reset: {'; '.join(left)}",
                provider=self.name,
                sandbox_id=sandbox_id,
            )

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
        total = self._so_far(sandbox_id, said.used)
        before = self._before.get(sandbox_id, _SoFar(0.0, 0.0))
        starved = total.starved
        if starved is not None:
            starved = max(starved - (before.starved or 0.0), 0.0)
        return Usage(
            processor_seconds=max(total.processor - before.processor, 0.0),
            starved_seconds=starved,
            processes=said.processes,
            memory_bytes=said.resident,
        )

    def _so_far(self, sandbox_id: str, said: requests.Used) -> _SoFar:
        used, exact = said.processor / 1e9, said.exact
        counted = self._processor_seconds(sandbox_id)
        if counted is not None:
            used, exact = max(counted - said.agent / 1e9, 0.0), True
        return _SoFar(used, said.starved / 1e9 if exact and said.starved is not None else None)

    def _processor_seconds(self, sandbox_id: str) -> float | None:
        """What the host counts for the sandbox and its agent; None to believe the agent alone."""
        return None

    async def aclose(self) -> None:
        for sandbox_id in {*self._clients, *self._lifelines, *self._connecting}:
            await self._forget(sandbox_id)
