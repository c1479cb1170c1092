"""One sandbox with an agent, its connection and all calls over it; and the base of the providers of such sandboxes."""

import asyncio
import errno
import math
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
)
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    AgentTooOldError,
    ConfigurationError,
    OutcomeUnknownError,
    PortError,
    PortLimitError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotCleanError,
    SandboxNotFoundError,
    SandboxPausedError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Box, Output, PortListener, Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient, BusyDetector
from sandboxkit.providers._agent.failures import (
    CallError,
    ConnectionEndedError,
    ProtocolError,
    SilentError,
)
from sandboxkit.providers._agent.frames import NEAR, Windows
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.providers._agent.link import Greeting
from sandboxkit.providers._agent.ports import (
    CONNECT,
    LISTEN,
    MOST_CONNECTIONS,
    AgentPortListener,
    Explain,
    OpenConnections,
    PortStream,
    opened,
)
from sandboxkit.providers._agent.stream import AgentStream
from sandboxkit.types import (
    Command,
    CommandSeries,
    Exit,
    FileInfo,
    Interpreter,
    ProcessResult,
    SandboxInfo,
    SandboxState,
    Usage,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CONNECT_PATIENCE = 8.0
"""Seconds to connect to a running sandbox, including the agent's WELCOME."""
_RETURN_PATIENCE = 4.0
"""Seconds that a call waits for the replacement of a broken connection before it fails."""
_END_PATIENCE = 2.0
"""If a sandbox has ended, the backend reports this within so many seconds after its agent's stream ended."""
_KILL_PATIENCE = 5.0
"""Seconds that a backend may take to kill a sandbox whose agent cannot be trusted."""

_Lost = type[OutcomeUnknownError] | type[ProviderUnavailableError]


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """The CPU and starved seconds of a sandbox since its start; `starved` is None if it is unknown."""

    processor: float
    starved: float | None


class AgentBox(Box):
    """`Box` minus `delete` and `_connect`, which a subclass implements.

    To start a sandbox, a provider starts `BINARY *agent_flags(spec, ...)` as PID 1 of it, gets the byte stream to its
    stdin and stdout (its stderr is for fatal errors only), and calls `await box.attach(stream, config_of(spec))`. If
    that fails or is cancelled afterwards, it calls `await box.forget()` and removes the sandbox. `delete` ends the
    sandbox within `async with self.deletion()`.
    """

    # Any: the provider's own type of box.
    def __init__(self, provider: "AgentProvider[Any]", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.keeper = provider
        self.is_ours = False
        """Whether this provider object created the sandbox, and so keeps this one until the sandbox is deleted."""
        self.deletions = 0
        """Number of `delete` calls in progress."""
        self.client: AgentClient | None = None
        self.lifeline: AgentClient | None = None
        """The owner's connection, whose end ends the sandbox. `client` is the same, or a faster connection."""
        self.boot: bytes | None = None
        """Identifies this run of the sandbox's agent: a restarted agent has another value."""
        self.connecting: asyncio.Task[AgentClient] | None = None
        self.paused = False
        """Whether this provider paused the sandbox, and has not resumed it since."""
        self.progress = BusyDetector()
        self.replaced = 0, 0
        """How many bytes went to and came from its agent over clients that others have replaced."""
        self.before = ProcessorTimes(0.0, 0.0)
        """The sandbox's usage at the last reset."""
        self.timer: asyncio.Task[None] | None = None
        """The background task that renews the sandbox or ends it in time."""

    async def set_timer(self, work: Coroutine[Any, Any, None] | None) -> None:
        """Cancel the timer, and run `work` in the background as the new one, unless it is None."""
        before, self.timer = self.timer, None if work is None else asyncio.create_task(work)
        if before is not None and before is not asyncio.current_task():
            before.cancel()
            await asyncio.wait([before])

    def moved(self) -> tuple[int, int]:
        """Return how many bytes went to its agent and came from it, over all connections of this process."""
        clients = {
            id(client): client for client in (self.client, self.lifeline) if client is not None
        }
        counts = [self.replaced, *(client.moved for client in clients.values())]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)

    def hold(self, paused: bool) -> None:
        """Note that its machine is paused, so that requests outlive the pause, or that it is no longer."""
        self.paused = paused
        for client in (self.client, self.lifeline):
            if client is not None:
                client.hold(paused)

    def replace_client(self) -> None:
        """Forget a client that has ended, but not what went over it."""
        if self.client is not None and self.client is not self.lifeline:
            (sent, received), (more, again) = self.replaced, self.client.moved
            self.replaced = sent + more, received + again
        self.client = None

    async def disconnect(self) -> None:
        """Close the agent connections; this ends an owned sandbox unless it is detached. Idempotent."""
        connecting, self.connecting = self.connecting, None
        if connecting is not None and connecting is not asyncio.current_task():
            connecting.cancel()
        clients = (self.client, self.lifeline)
        self.client = self.lifeline = None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def aclose(self) -> None:
        """Release all resources, without waiting for the sandbox's end. Idempotent."""
        await self.set_timer(None)
        await self.disconnect()

    async def forget(self) -> None:
        """Close the connections, which ends an owned sandbox unless it is detached, and hold the box no longer.

        Idempotent; does not wait for the sandbox's end.
        """
        self.keeper.drop(self)
        self.is_ours = False
        await self.aclose()

    async def _forget_ended(self, error: Exception) -> None:
        """Forget a sandbox that another provider created, if it ended or was never reached."""
        ended = isinstance(error, SandboxNotFoundError | SandboxTerminatedError)
        if not self.is_ours and not self.deletions and (ended or self.boot is None):
            await self.forget()

    @asynccontextmanager
    async def deletion(self) -> AsyncIterator[None]:
        """Context in which `delete` ends the sandbox. The box is forgotten afterwards, even after a
        failure, so that the next attempt uses the backend's state."""
        self.deletions += 1
        try:
            yield
        finally:
            self.deletions -= 1
            await (self.aclose() if self.deletions else self.forget())

    streams_fall_silent: ClassVar[bool] = True
    """Whether a stream with a grace may break without either end noticing."""

    def _grace(self, stream: ByteStream) -> float:
        """Return the grace (s): how long a connection may be broken before its requests are killed.

        It is 0 for a stream that ends only with its client. A broken stream with a grace is replaced by
        `_connect`; in return, the agent notices a client's death that much later.
        """
        return 0.0

    def _windows(self) -> Windows:
        """Return the flow-control windows of each stream: larger for a longer round trip."""
        return NEAR

    @abstractmethod
    async def _connect(self) -> ByteStream:
        """Open another stream to a running sandbox's agent, over its listening socket.

        Called when this process has no live connection to it: for a sandbox made by another
        process, a detached one, or one whose connection broke.
        Raised: `SandboxNotFoundError` when there is no such sandbox or it is gone,
        `ProviderUnavailableError`, `AuthenticationError`.
        """

    def _agent_pid(self) -> int | None:
        """Return the agent's pid on this machine; None if the agent is elsewhere or its pid unknown."""
        return None

    def _starved(self) -> bool:
        pid = self._agent_pid()
        return pid is not None and self.progress.is_busy(pid)

    async def _why_ended(self, reason: str) -> SandboxError:
        """Return the error for calls in flight when the agent ended; override it for a better message.

        `reason` is the agent's last message ("lifetime", a protocol error). "" means that the agent
        was killed (out of memory, `delete`, the daemon) or ended because its owner's stream broke.
        """
        owner = "its agent was killed, or its owner is gone"
        causes = {"": owner, "lifetime": "its lifetime is over"}
        return SandboxTerminatedError(f"sandbox {self.id!r} ended: {causes.get(reason, reason)}")

    async def attach(
        self,
        stream: ByteStream,
        config: AgentConfig | Greeting,
        *,
        lifeline: bool = True,
    ) -> AgentClient:
        """Become the agent's owner, over the agent's own stdin and stdout.

        Send `config`, unless it is a greeting, which the agent already has. Return when commands can run:
        the workdir exists and the main command has started. The stream is the sandbox's lifeline: a
        sandbox that is not detached ends when the stream is closed, or breaks and is not replaced within
        `_grace`. `lifeline=False` is for an agent whose owner connects to its socket. A failure closes
        the stream. Raises SandboxStartError if the agent refuses, its stream ends, or it stays silent. The
        error is `retryable` if the agent gave no reason: a machine under load may have been the reason.
        """
        self.is_ours = True
        self.keeper.keep(self)
        try:
            client = await self._greeted(stream, config)
        except (ConnectionEndedError, SilentError) as error:
            failed = SandboxStartError(f"sandbox {self.id!r} did not start: {error}")
            failed.retryable = isinstance(error, SilentError) or not error.reason
            raise failed from error
        self.client, self.boot = client, client.boot
        if lifeline:
            self.lifeline = client
        return client

    async def _greeted(
        self, stream: ByteStream, config: AgentConfig | Greeting | None = None
    ) -> AgentClient:
        """Open a session over `stream` and return its client, which with a `config` is the agent's owner."""
        return await AgentClient.start(
            stream,
            config if isinstance(config, Greeting) else requests.hello(config, self._windows()),
            first=b"" if config is None else config.first,
            grace=self._grace(stream),
            reopen=self._connect,
            fall_silent=self.streams_fall_silent,
            windows=self._windows(),
            starved=self._starved,
            force=self._force,
        )

    async def _force(self, reason: str) -> bool:
        """End a sandbox of ours whose agent cannot be trusted; return False if only its connections ended."""
        for client in filter(None, (self.client, self.lifeline)):
            await client.finish(reason)
        with anyio.move_on_after(_KILL_PATIENCE), suppress(SandboxError):
            return self.is_ours and await self._kill()
        return False

    async def _kill(self) -> bool:
        """Kill a sandbox from outside, without its agent; return False if this backend cannot at once."""
        return False

    async def _client(self) -> AgentClient:
        """Return the live connection to a sandbox; open one with `_connect` if there is none."""
        client = self.client
        if client is not None and client.ended is None:
            if not await client.connected(_RETURN_PATIENCE):
                raise ProviderUnavailableError(
                    f"sandbox {self.id!r} cannot be reached: its connection broke and could not be "
                    f"reopened within {_RETURN_PATIENCE:g} s; the request was not sent"
                )
            if client.ended is None:
                return client
        task = self.connecting
        if task is None:
            self.keeper.keep(self)
            # All waiting calls share one attempt, because separate attempts would not be faster.
            task = self.connecting = asyncio.create_task(self._connected())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not task.cancelled() or (current is not None and current.cancelling()):
                raise
            raise SandboxTerminatedError(
                f"sandbox {self.id!r} was stopped while a connection to it was being opened"
            ) from None

    async def _connected(self) -> AgentClient:
        try:
            return await self._reached()
        except Exception as error:
            await self._forget_ended(error)
            raise
        finally:
            if self.connecting is asyncio.current_task():
                self.connecting = None

    async def _reached(self) -> AgentClient:
        self.replace_client()
        try:
            with anyio.fail_after(_CONNECT_PATIENCE):
                stream = await self._connect()
                client = await self._greeted(stream)
        except SandboxNotFoundError as error:
            owner = self.lifeline
            if owner is None or owner.ended is None:
                raise
            raise await self._why_ended(owner.ended) from error  # it was ours
        except ConnectionEndedError as error:
            broke = "the connection to sandbox {!r} broke while it was being opened"
            raise await self._why_broken(None, error, broke) from error
        except TimeoutError as error:
            raise ProviderUnavailableError(
                f"sandbox {self.id!r} does not answer: no connection to it within "
                f"{_CONNECT_PATIENCE:g} s; it is paused, or its machine hangs"
            ) from error
        if client.boot != (self.boot or client.boot):
            await client.aclose()
            raise SandboxTerminatedError(
                f"sandbox {self.id!r} was restarted: its processes are gone"
            )
        self.client, self.boot = client, client.boot
        return client

    async def _explained(
        self,
        error: ConnectionEndedError | SilentError | CallError,
        client: AgentClient,
        path: str | None,
        *,
        once: bool = False,
    ) -> SandboxError:
        """Translate a request's error to a provider error.

        A lost connection gives a ProviderUnavailableError, or with `once`, for a request that must not be
        repeated, an OutcomeUnknownError. `path` is the path of a file call.
        """
        lost: _Lost = OutcomeUnknownError if once else ProviderUnavailableError
        unknown = "; whether it ran, and how it ended, is unknown" if once else ""
        if isinstance(error, ProtocolError):
            with anyio.CancelScope(shield=True):  # the call may have been cancelled
                await client.finish(error.reason)
                await self._force(error.reason)
        if isinstance(error, ConnectionEndedError):
            broke = f"the connection to sandbox {{!r}} broke during a call{unknown}"
            return await self._why_broken(client, error, broke, lost)
        if isinstance(error, SilentError):
            return lost(
                f"sandbox {self.id!r} does not answer: {error}; it is paused, or its machine "
                f"hangs{unknown}",
            )
        if path is None or error.errno == requests.PAUSED:
            return _refused(error, self.id)
        kind = SandboxFileNotFoundError if error.errno == errno.ENOENT else SandboxFileError
        return kind(str(error), path=path, sandbox_id=self.id)

    async def _why_broken(
        self,
        client: AgentClient | None,
        error: ConnectionEndedError,
        broke: str,
        lost: _Lost = ProviderUnavailableError,
    ) -> SandboxError:
        """Return the error for a connection that ended: the reason of the sandbox's end, or, if the
        sandbox lives, an error of the class `lost` with the message `broke`."""
        if client is not None and isinstance(client.why_ended, SandboxTerminatedError):
            return client.why_ended
        reason = error.reason or ("it was deleted" if self.deletions else "")
        if not await self._lives(client, reason):
            ended = await self._why_ended(reason)
            await self._forget_ended(ended)
            return ended
        broken = lost(broke.format(self.id))
        if client is not None and client.why_ended is not None:
            broken.add_note(f"it could not be reopened: {client.why_ended}")
        return broken

    async def open_link(self) -> ByteStream:
        return await self._connect()

    async def why_ended(self) -> SandboxError:
        owner = self.lifeline
        return await self._why_ended((owner and owner.ended) or "")

    async def _lives(self, client: AgentClient | None, reason: str) -> bool:
        """Return whether a sandbox outlived `client`; it never outlives its owner's connection."""
        owner = self.lifeline
        if reason or (owner is not None and (owner is client or owner.ended is not None)):
            return False
        with anyio.move_on_after(_END_PATIENCE) as patience:
            while True:
                try:
                    info = await self.info()
                except SandboxNotFoundError:
                    return False
                except SandboxError:
                    return True  # the backend does not respond, so nothing proves an end
                if info.state is SandboxState.STOPPED:
                    return False
                await anyio.sleep(0.05)
        return patience.cancelled_caught

    async def ready(self) -> bool:
        if self.client is None:
            return await super().ready()
        ways = (self.client, self.lifeline)
        return all(client is None or client.ended is None for client in ways)

    async def exec(self, command: Command, output: Output) -> Exit:
        return await self._execute(command, output)

    async def set_up(self, command: Command) -> Command:
        knows = requests.SETS_UP in (await self._client()).calls
        return command if knows else await super().set_up(command)

    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        return await self._execute(command, output, code)

    async def _execute(self, command: Command, output: Output, code: str | None = None) -> Exit:
        client = await self._client()
        try:
            return await requests.execute(client, command, output, code)
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, client, None, once=True) from error

    async def exec_each(self, command: Command, series: CommandSeries) -> "list[ProcessResult]":
        return await self._ask(None, requests.execute_each, command, series)

    async def workdir(self) -> str:
        return (await self._client()).workdir

    async def start_interpreter(self, interpreter: Interpreter) -> None:
        await self._ask(None, requests.start_interpreter, interpreter)

    async def reset(self) -> None:
        left, used = await self._ask(None, requests.reset)
        self.before = self._so_far(used)
        if left:
            raise SandboxNotCleanError(f"sandbox {self.id!r} cannot be reset: {'; '.join(left)}")

    async def renew(self, lifetime: float) -> None:
        if not (lifetime > 0 and math.isfinite(lifetime)):
            raise ConfigurationError(f"lifetime {lifetime!r}: give a positive number of seconds")
        await self._ask(None, requests.renew, lifetime)

    async def logs(self) -> bytes:
        return await self._ask(None, requests.logs)

    async def wait(self) -> int:
        return await self._ask(None, requests.wait)

    async def usage(self) -> Usage:
        usage = await self._ask(None, requests.stats)
        total = self._so_far(usage.used)
        starved = total.starved
        if starved is not None:
            starved = max(starved - (self.before.starved or 0.0), 0.0)
        processor = max(total.processor - self.before.processor, 0.0)
        return Usage(processor, starved, usage.processes, usage.resident, *self.moved())

    async def metered(self, *, last: bool = False) -> Usage:
        counted = self._whole_processor_seconds()
        if not last and self.lifeline is not None and self.lifeline.ended is not None:
            raise await self.why_ended()
        moved, client = self.moved(), self.client
        known = Usage(counted, None, None, None, *moved)
        if client is None or client.ended is not None or (last and counted is not None):
            return known
        try:
            stats = await requests.stats(client)
        except (ConnectionEndedError, SilentError, CallError) as error:
            if isinstance(error, ProtocolError):
                await self._force(error.reason)
            return known
        if counted is None:
            counted = (stats.used.processor + stats.used.agent) / 1e9
        return Usage(counted, None, stats.processes, stats.resident, *moved)

    def _whole_processor_seconds(self) -> float | None:
        """Return the host's count for sandbox and agent, if it can be read at once, else None."""
        return self._processor_seconds()

    def _so_far(self, usage: requests.ProcessorUsage) -> ProcessorTimes:
        used, exact = usage.processor / 1e9, usage.exact
        counted = self._processor_seconds()
        if counted is not None:
            used, exact = max(counted - usage.agent / 1e9, 0.0), True
        return ProcessorTimes(
            used, usage.starved / 1e9 if exact and usage.starved is not None else None
        )

    def _processor_seconds(self) -> float | None:
        """Return the host's count of CPU seconds of sandbox and agent; None: use the agent's count."""
        return None

    @asynccontextmanager
    async def call(self, path: str | None = None) -> AsyncIterator[AgentClient]:
        """Yield the connection for one request, and translate its errors to those of the SPI."""
        client = await self._client()
        try:
            yield client
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, client, path) from error

    async def _ask(
        self,
        path: str | None,
        request: Callable[Concatenate[AgentClient, _P], Awaitable[_T]],
        *arguments: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        async with self.call(path) as client:
            return await request(client, *arguments, **options)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        return await self._ask(path, requests.read_file, path, max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int | None) -> None:
        await self._ask(path, requests.write_file, path, data, mode)

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await self._ask(path, requests.put_archive, path, tar)

    async def get_archive(self, path: str) -> AsyncGenerator[bytes, None]:
        async with (
            self.call(path) as client,
            aclosing(requests.get_archive(client, path)) as archive,
        ):
            async for chunk in archive:
                yield chunk

    async def read_pieces(self, path: str, *, max_bytes: int) -> AsyncGenerator[bytes, None]:
        async with (
            self.call(path) as client,
            aclosing(requests.read_pieces(client, path, max_bytes)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def list_dir(self, path: str) -> "list[FileInfo]":
        return await self._ask(path, requests.list_dir, path)

    async def stat(self, path: str) -> FileInfo:
        return await self._ask(path, requests.stat, path)

    async def remove(self, path: str, *, recursive: bool) -> None:
        await self._ask(path, requests.remove, path, recursive)

    async def check_ports(self) -> None:
        async with self.call() as client:
            client.require(CONNECT)

    async def connect(self, port: int) -> ByteStream:
        connections = self.keeper.connections
        if not connections.add(self.id):
            raise PortLimitError(
                f"{connections.count(self.id)} connections to this sandbox are open, and "
                f"{connections.total} of {connections.most} to all sandboxes of this session: close some",
                errno=errno.EMFILE,
            )
        try:
            async with self.call() as client:
                stream, _ = await self._open(client, CONNECT, port)
        except BaseException:
            connections.remove(self.id)
            raise
        remove = partial(connections.remove, self.id)
        return PortStream(stream, self._explain(client), remove)

    async def listen(self, port: int) -> PortListener:
        async with self.call() as client:
            call, number = await self._open(client, LISTEN, port)
        explain = self._explain(client)
        return AgentPortListener(client, call, number, explain, self.keeper.connections, self.id)

    def _explain(self, client: AgentClient) -> Explain:
        return lambda error: self._explained(error, client, None)

    async def _open(
        self, client: AgentClient, operation: int, port: int
    ) -> tuple[AgentStream, int]:
        try:
            return await opened(client, operation, port)
        except CallError as error:
            if error.errno in (errno.ENOSYS, errno.EHOSTDOWN):
                raise  # the agent is too old, or the sandbox is paused
            kind = PortLimitError if error.errno == errno.EMFILE else PortError
            raise kind(f"sandbox {self.id!r}: {error}", errno=error.errno) from error

    async def pause(self) -> None:
        await self._ask(None, requests.pause, True)
        self.paused = True

    async def resume(self) -> None:
        await self._ask(None, requests.pause, False)
        self.paused = False


BoxT = TypeVar("BoxT", bound=AgentBox)


class AgentProvider(Provider, Generic[BoxT]):
    """`Provider` minus `create` and `list`, for sandboxes with an agent."""

    def __init__(self) -> None:
        # Any: a class variable cannot have the type of this class's boxes.
        kind: Any = self.box_type
        self._kind: Callable[[AgentProvider[BoxT], str], BoxT] = kind
        self._boxes: WeakValueDictionary[str, BoxT] = WeakValueDictionary()
        self._kept: set[BoxT] = set()
        """Own boxes until their deletion, and others from their first call until they are found to have ended."""

    @cached_property
    def connections(self) -> OpenConnections:
        """The open connections to ports of all sandboxes."""
        return OpenConnections(MOST_CONNECTIONS)

    def box(self, sandbox_id: str) -> BoxT:
        found = self._boxes.get(sandbox_id)
        if found is None:
            found = self._boxes[sandbox_id] = self._kind(self, sandbox_id)
        return found

    def keep(self, box: BoxT) -> None:
        """Hold a box until it is dropped, or this provider is closed."""
        self._kept.add(box)

    def kept(self) -> tuple[BoxT, ...]:
        """Return the boxes that this provider holds."""
        return tuple(self._kept)

    def drop(self, box: BoxT) -> None:
        """Hold a box no longer; the next that asks for its id gets a fresh one."""
        self._kept.discard(box)
        if self._boxes.get(box.id) is box:
            del self._boxes[box.id]

    def stated(self, info: SandboxInfo) -> SandboxInfo:
        """Return the description of a sandbox, with the state PAUSED if this provider paused it."""
        paused = self.box(info.id).paused and info.state is SandboxState.RUNNING
        return replace(info, state=SandboxState.PAUSED) if paused else info

    async def aclose(self) -> None:
        await asyncio.gather(*(box.forget() for box in self.kept()))


def _refused(error: CallError, sandbox_id: str) -> SandboxError:
    """Return the provider error for a call that the agent refused."""
    if error.errno == errno.ENOSYS:
        return AgentTooOldError(
            f"the agent of sandbox {sandbox_id!r} is too old ({error}): another version of sandboxkit "
            "started it. Start the sandbox again with this version; if its image has an agent, renew "
            "that first with `sandboxkit bake`",
        )
    if error.errno == requests.PAUSED:
        return SandboxPausedError(f"{error}: call resume() first")
    if error.errno == errno.ETIMEDOUT:
        # The machine is overloaded; the caller's options are not at fault.
        return ProviderUnavailableError(str(error))
    return ConfigurationError(str(error))
