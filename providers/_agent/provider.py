"""The base of all agent-based providers: it runs commands, file calls, renewals and logs via the agent."""

import asyncio
import errno
import math
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Generic, TypeVar

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    AgentTooOldError,
    ConfigurationError,
    OutcomeUnknownError,
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
from sandboxkit.provider import Output
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import (
    CallError,
    ConnectionEndedError,
    ProtocolError,
    SilentError,
)
from sandboxkit.providers._agent.frames import NEAR, Windows
from sandboxkit.providers._agent.instance import Instance, ProcessorTimes
from sandboxkit.providers._agent.launch import AgentConfig
from sandboxkit.providers._agent.link import Greeting
from sandboxkit.providers._agent.ports import PortsProvider
from sandboxkit.types import (
    Command,
    CommandSeries,
    Exit,
    Interpreter,
    ProcessResult,
    SandboxState,
    Usage,
)

_CONNECT_PATIENCE = 8.0
"""Seconds to connect to a running sandbox, including the agent's WELCOME."""
_RETURN_PATIENCE = 4.0
"""Seconds that a call waits for the replacement of a broken connection before it fails."""
_END_PATIENCE = 2.0
"""If a sandbox has ended, the backend reports this within so many seconds after its agent's stream ended."""
_KILL_PATIENCE = 5.0
"""Seconds that a backend may take to kill a sandbox whose agent cannot be trusted."""

_Lost = type[OutcomeUnknownError] | type[ProviderUnavailableError]
InstanceT = TypeVar("InstanceT", bound=Instance)


class AgentProvider(PortsProvider, Generic[InstanceT]):
    """`Provider` minus `create`, `list`, `delete` and `_connect`, which a subclass implements.

    A subclass's `create` starts `BINARY *agent_flags(spec, ...)` as PID 1 of the sandbox,
    gets the byte stream to its stdin and stdout (its stderr is for fatal errors only), calls
    `await self._attach(id, stream, config_of(spec))` and returns the id. If it fails or is
    cancelled afterwards, it calls `await self._forget(id)` and removes the sandbox.
    Its `delete` ends the sandbox within `async with self._deletion(id)`.
    All its state for one sandbox is in that sandbox's `Instance`.
    """

    def __init__(self, kind: type[InstanceT]) -> None:
        """`kind` is the subclass's `Instance` type; its only required argument is the id."""
        self._kind = kind
        self._instances: dict[str, InstanceT] = {}
        """The state of sandboxes by id. Own sandboxes stay until their deletion, other sandboxes until this
        provider finds that they have ended."""

    def _known(self, sandbox_id: str) -> InstanceT:
        """Return a sandbox's instance, or a fresh one that is not stored."""
        return self._instances.get(sandbox_id) or self._kind(sandbox_id)

    def _instance(self, sandbox_id: str) -> InstanceT:
        """Return a sandbox's instance; create and store it if there is none. `_forget` drops it."""
        return self._instances.setdefault(sandbox_id, self._known(sandbox_id))

    async def _forget(self, sandbox_id: str) -> None:
        """Drop a sandbox's instance and close its connections, which ends an owned one unless detached.

        Idempotent; does not wait for the sandbox's end.
        """
        instance = self._instances.pop(sandbox_id, None)
        if instance is not None:
            await instance.aclose()

    async def _forget_ended(self, instance: InstanceT, error: Exception) -> None:
        """Drop the instance of a sandbox that another provider created, if it ended or was never reached."""
        ended = isinstance(error, SandboxNotFoundError | SandboxTerminatedError)
        if not instance.is_ours and not instance.deletions and (ended or instance.boot is None):
            await self._forget(instance.id)

    @asynccontextmanager
    async def _deletion(self, sandbox_id: str) -> AsyncIterator[InstanceT]:
        """Context in which `delete` ends a sandbox. The instance is dropped afterwards, even after a
        failure, so that the next attempt uses the backend's state."""
        instance = self._instance(sandbox_id)
        instance.deletions += 1
        try:
            yield instance
        finally:
            instance.deletions -= 1
            if instance.deletions:
                await instance.aclose()
            else:
                await self._forget(sandbox_id)

    @abstractmethod
    async def _connect(self, sandbox_id: str) -> ByteStream:
        """Open another stream to a running sandbox's agent, over its listening socket.

        Called when this process has no live connection to it: for a sandbox made by another
        process, a detached one, or one whose connection broke.
        Raised: `SandboxNotFoundError` when there is no such sandbox or it is gone,
        `ProviderUnavailableError`, `AuthenticationError`.
        """

    _streams_fall_silent: ClassVar[bool] = True
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

    def _agent_pid(self, instance: InstanceT) -> int | None:
        """Return the agent's pid on this machine; None if the agent is elsewhere or its pid unknown."""
        return None

    def _starved(self, instance: InstanceT) -> bool:
        pid = self._agent_pid(instance)
        return pid is not None and instance.progress.is_busy(pid)

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        """Return the error for calls in flight when the agent ended; override it for a better message.

        `reason` is the agent's last message ("lifetime", a protocol error). "" means that the agent
        was killed (out of memory, `delete`, the daemon) or ended because its owner's stream broke.
        """
        owner = "its agent was killed, or its owner is gone"
        causes = {"": owner, "lifetime": "its lifetime is over"}
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} ended: {causes.get(reason, reason)}",
            sandbox_id=sandbox_id,
        )

    async def _attach(
        self,
        sandbox_id: str,
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
        instance = self._instance(sandbox_id)
        instance.is_ours = True
        try:
            client = await self._greeted(instance, stream, config)
        except (ConnectionEndedError, SilentError) as error:
            failed = SandboxStartError(
                f"sandbox {sandbox_id!r} did not start: {error}", sandbox_id=sandbox_id
            )
            failed.retryable = isinstance(error, SilentError) or not error.reason
            raise failed from error
        instance.client, instance.boot = client, client.boot
        if lifeline:
            instance.lifeline = client
        return client

    async def _greeted(
        self,
        instance: InstanceT,
        stream: ByteStream,
        config: AgentConfig | Greeting | None = None,
    ) -> AgentClient:
        """Open a session over `stream` and return its client, which with a `config` is the agent's owner."""
        return await AgentClient.start(
            stream,
            config if isinstance(config, Greeting) else requests.hello(config, self._windows()),
            first=b"" if config is None else config.first,
            grace=self._grace(stream),
            reopen=lambda: self._connect(instance.id),
            fall_silent=self._streams_fall_silent,
            windows=self._windows(),
            starved=lambda: self._starved(instance),
            force=lambda reason: self._force(instance, reason),
        )

    async def _force(self, instance: InstanceT, reason: str) -> bool:
        """End a sandbox of ours whose agent cannot be trusted; return False if only its connections ended."""
        for client in filter(None, (instance.client, instance.lifeline)):
            await client.finish(reason)
        with anyio.move_on_after(_KILL_PATIENCE), suppress(SandboxError):
            return instance.is_ours and await self._kill(instance)
        return False

    async def _kill(self, instance: InstanceT) -> bool:
        """Kill a sandbox from outside, without its agent; return False if this backend cannot at once."""
        return False

    async def _client(self, sandbox_id: str) -> AgentClient:
        """Return the live connection to a sandbox; open one with `_connect` if there is none."""
        client = self._known(sandbox_id).client
        if client is not None and client.ended is None:
            if not await client.connected(_RETURN_PATIENCE):
                raise ProviderUnavailableError(
                    f"sandbox {sandbox_id!r} cannot be reached: its connection broke and could not be "
                    f"reopened within {_RETURN_PATIENCE:g} s; the request was not sent",
                    sandbox_id=sandbox_id,
                )
            if client.ended is None:
                return client
        instance = self._instance(sandbox_id)
        task = instance.connecting
        if task is None:
            # All waiting calls share one attempt, because separate attempts would not be faster.
            task = instance.connecting = asyncio.create_task(self._connected(instance))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not task.cancelled() or (current is not None and current.cancelling()):
                raise
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} was stopped while a connection to it was being opened",
                sandbox_id=sandbox_id,
            ) from None

    async def _connected(self, instance: InstanceT) -> AgentClient:
        try:
            return await self._reached(instance)
        except Exception as error:
            await self._forget_ended(instance, error)
            raise
        finally:
            if instance.connecting is asyncio.current_task():
                instance.connecting = None

    async def _reached(self, instance: InstanceT) -> AgentClient:
        sandbox_id = instance.id
        instance.replace_client()
        try:
            with anyio.fail_after(_CONNECT_PATIENCE):
                stream = await self._connect(sandbox_id)
                client = await self._greeted(instance, stream)
        except SandboxNotFoundError as error:
            owner = instance.lifeline
            if owner is None or owner.ended is None:
                raise
            raise await self._why_ended(sandbox_id, owner.ended) from error  # it was ours
        except ConnectionEndedError as error:
            broke = "the connection to sandbox {!r} broke while it was being opened"
            raise await self._why_broken(sandbox_id, None, error, broke) from error
        except TimeoutError as error:
            raise ProviderUnavailableError(
                f"sandbox {sandbox_id!r} does not answer: no connection to it within "
                f"{_CONNECT_PATIENCE:g} s; it is paused, or its machine hangs",
                sandbox_id=sandbox_id,
            ) from error
        if client.boot != (instance.boot or client.boot):
            await client.aclose()
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} was restarted: its processes are gone",
                sandbox_id=sandbox_id,
            )
        instance.client, instance.boot = client, client.boot
        return client

    async def _explained(
        self,
        error: ConnectionEndedError | SilentError | CallError,
        sandbox_id: str,
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
                await self._force(self._known(sandbox_id), error.reason)
        if isinstance(error, ConnectionEndedError):
            broke = f"the connection to sandbox {{!r}} broke during a call{unknown}"
            return await self._why_broken(sandbox_id, client, error, broke, lost)
        if isinstance(error, SilentError):
            return lost(
                f"sandbox {sandbox_id!r} does not answer: {error}; it is paused, or its machine "
                f"hangs{unknown}",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        if path is None or error.errno == requests.PAUSED:
            return _refused(error, self.name, sandbox_id)
        kind = SandboxFileNotFoundError if error.errno == errno.ENOENT else SandboxFileError
        return kind(str(error), path=path, sandbox_id=sandbox_id)

    async def _why_broken(
        self,
        sandbox_id: str,
        client: AgentClient | None,
        error: ConnectionEndedError,
        broke: str,
        lost: _Lost = ProviderUnavailableError,
    ) -> SandboxError:
        """Return the error for a connection that ended: the reason of the sandbox's end, or, if the
        sandbox lives, an error of the class `lost` with the message `broke`."""
        if client is not None and isinstance(client.why_ended, SandboxTerminatedError):
            return client.why_ended
        reason = error.reason or ("it was deleted" if self._known(sandbox_id).deletions else "")
        if not await self._lives(sandbox_id, client, reason):
            ended = await self._why_ended(sandbox_id, reason)
            await self._forget_ended(self._known(sandbox_id), ended)
            return ended
        broken = lost(broke.format(sandbox_id), provider=self.name, sandbox_id=sandbox_id)
        if client is not None and client.why_ended is not None:
            broken.add_note(f"it could not be reopened: {client.why_ended}")
        return broken

    async def open_link(self, sandbox_id: str) -> ByteStream:
        return await self._connect(sandbox_id)

    async def why_ended(self, sandbox_id: str) -> SandboxError:
        owner = self._known(sandbox_id).lifeline
        return await self._why_ended(sandbox_id, (owner and owner.ended) or "")

    async def _lives(self, sandbox_id: str, client: AgentClient | None, reason: str) -> bool:
        """Return whether a sandbox outlived `client`; it never outlives its owner's connection."""
        owner = self._known(sandbox_id).lifeline
        if reason or (owner is not None and (owner is client or owner.ended is not None)):
            return False
        with anyio.move_on_after(_END_PATIENCE) as patience:
            while True:
                try:
                    info = await self.get(sandbox_id)
                except SandboxNotFoundError:
                    return False
                except SandboxError:
                    return True  # the backend does not respond, so nothing proves an end
                if info.state is SandboxState.STOPPED:
                    return False
                await anyio.sleep(0.05)
        return patience.cancelled_caught

    async def ready(self, sandbox_id: str) -> bool:
        instance = self._known(sandbox_id)
        if instance.client is None:
            return await super().ready(sandbox_id)
        ways = (instance.client, instance.lifeline)
        return all(client is None or client.ended is None for client in ways)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        return await self._execute(sandbox_id, command, output)

    async def set_up(self, sandbox_id: str, command: Command) -> Command:
        knows = requests.SETS_UP in (await self._client(sandbox_id)).calls
        return command if knows else await super().set_up(sandbox_id, command)

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

    async def exec_each(
        self, sandbox_id: str, command: Command, series: CommandSeries
    ) -> "list[ProcessResult]":
        return await self._ask(sandbox_id, None, requests.execute_each, command, series)

    async def workdir(self, sandbox_id: str) -> str:
        return (await self._client(sandbox_id)).workdir

    async def start_interpreter(self, sandbox_id: str, interpreter: Interpreter) -> None:
        await self._ask(sandbox_id, None, requests.start_interpreter, interpreter)

    async def reset(self, sandbox_id: str) -> None:
        left, used = await self._ask(sandbox_id, None, requests.reset)
        self._known(sandbox_id).before = self._so_far(sandbox_id, used)
        if left:
            raise SandboxNotCleanError(f"sandbox {sandbox_id!r} cannot be reset: {'; '.join(left)}")

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        if not (lifetime > 0 and math.isfinite(lifetime)):
            raise ConfigurationError(f"lifetime {lifetime!r}: give a positive number of seconds")
        await self._ask(sandbox_id, None, requests.renew, lifetime)

    async def logs(self, sandbox_id: str) -> bytes:
        return await self._ask(sandbox_id, None, requests.logs)

    async def wait(self, sandbox_id: str) -> int:
        return await self._ask(sandbox_id, None, requests.wait)

    async def usage(self, sandbox_id: str) -> Usage:
        usage = await self._ask(sandbox_id, None, requests.stats)
        total = self._so_far(sandbox_id, usage.used)
        known, starved = self._known(sandbox_id), total.starved
        if starved is not None:
            starved = max(starved - (known.before.starved or 0.0), 0.0)
        processor = max(total.processor - known.before.processor, 0.0)
        return Usage(processor, starved, usage.processes, usage.resident, *known.moved())

    async def metered(self, sandbox_id: str, *, last: bool = False) -> Usage:
        instance, counted = self._known(sandbox_id), self._whole_processor_seconds(sandbox_id)
        if not last and instance.lifeline is not None and instance.lifeline.ended is not None:
            raise await self.why_ended(sandbox_id)
        moved, client = instance.moved(), instance.client
        known = Usage(counted, None, None, None, *moved)
        if client is None or client.ended is not None or (last and counted is not None):
            return known
        try:
            stats = await requests.stats(client)
        except (ConnectionEndedError, SilentError, CallError) as error:
            if isinstance(error, ProtocolError):
                await self._force(instance, error.reason)
            return known
        if counted is None:
            counted = (stats.used.processor + stats.used.agent) / 1e9
        return Usage(counted, None, stats.processes, stats.resident, *moved)

    def _whole_processor_seconds(self, sandbox_id: str) -> float | None:
        """Return the host's count for sandbox and agent, if it can be read at once, else None."""
        return self._processor_seconds(sandbox_id)

    def _so_far(self, sandbox_id: str, usage: requests.ProcessorUsage) -> ProcessorTimes:
        used, exact = usage.processor / 1e9, usage.exact
        counted = self._processor_seconds(sandbox_id)
        if counted is not None:
            used, exact = max(counted - usage.agent / 1e9, 0.0), True
        return ProcessorTimes(
            used, usage.starved / 1e9 if exact and usage.starved is not None else None
        )

    def _processor_seconds(self, sandbox_id: str) -> float | None:
        """Return the host's count of CPU seconds of sandbox and agent; None: use the agent's count."""
        return None

    async def aclose(self) -> None:
        await asyncio.gather(*(self._forget(sandbox_id) for sandbox_id in (*self._instances,)))


def _refused(error: CallError, provider: str, sandbox_id: str) -> SandboxError:
    """Return the provider error for a call that the agent refused."""
    if error.errno == errno.ENOSYS:
        return AgentTooOldError(
            f"the agent of sandbox {sandbox_id!r} is too old ({error}): another version of sandboxkit "
            "started it. Start the sandbox again with this version; if its image has an agent, renew "
            "that first with `sandboxkit bake`",
            provider=provider,
            sandbox_id=sandbox_id,
        )
    if error.errno == requests.PAUSED:
        return SandboxPausedError(
            f"{error}: call resume() first", provider=provider, sandbox_id=sandbox_id
        )
    if error.errno == errno.ETIMEDOUT:
        # The machine is overloaded; the caller's options are not at fault.
        return ProviderUnavailableError(str(error), provider=provider, sandbox_id=sandbox_id)
    return ConfigurationError(str(error), provider=provider, sandbox_id=sandbox_id)
