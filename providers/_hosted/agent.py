"""The base of the hosted providers: installs the agent in a vendor's sandbox and connects to it."""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import FirstCommand, Output
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.box import AgentBox, AgentProvider, BoxT
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.exec_frame import exec_payload
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, SilentError
from sandboxkit.providers._agent.frames import FAR, FIRST_STREAM, Kind, Windows, encode
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags, config_of
from sandboxkit.providers._agent.link import BROKEN, Greeting
from sandboxkit.providers._agent.stream import AgentStream
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.ambiguous import is_ambiguous, public
from sandboxkit.types import Command, Exit, SandboxSpec

_STRICT_USER = "65534:65534"
"""Runs the commands of a strict sandbox, unless the spec names a user. No vendor mounts the root file system
read-only; this user owns no files, and before the first command world write permission is removed from
everything except folders with the sticky bit, such as /tmp."""
_GRACE = 60.0
"""Seconds in which a broken stream can be replaced; a vendor's streams break without an error."""
_START_SECONDS = 60.0
_LATE_SECONDS = 1.0
"""How long (s) the start or the upload on which it depends may still take after the other has failed or ended."""
_SNAPSHOTS = "snapshots of sandboxes"
"""The key in `assumed_agents` that all snapshots share, because there may be thousands of them."""
_LARGEST_GREETING = 8 << 10
"""The largest greeting (bytes) in a start request; Modal limits a command line to 64 KiB in total."""
_LARGEST_FIRST = 256 << 10
"""The largest command (bytes) that is sent with a start; a longer one is sent once the agent has replied."""


class UploadRefusedError(Exception):
    """A sandbox refused the file of `_upload`, and has no complete file."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.lasting = status != 429 and status < 500
        """Whether later uploads would be refused as well."""


class ProgramStream(ByteStream):
    """A byte stream to the stdin and stdout of a program that one vendor call runs in a sandbox.

    One task receives and one sends; any task may close it, which ends the program. It raises
    EndOfStream when the program has ended and BrokenResourceError when the call broke; it never loses
    data silently.
    """

    diagnostics: bytes = b""
    """The last output on stderr, if the vendor separates it from stdout."""

    async def send_eof(self) -> None:
        raise NotImplementedError("its input ends when it is closed")


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command that was sent with its sandbox's start; a later `exec` with the same Command continues it."""

    command: Command
    client: AgentClient
    stream: AgentStream


_T = TypeVar("_T")


class HostedBox(AgentBox):
    """`AgentBox` for a vendor that runs programs in its sandboxes.

    A subclass implements `info`, `delete` and `_run`.
    """

    # Any: the provider's own type of box.
    def __init__(self, provider: "HostedProvider[Any]", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.hosted = provider
        self.first: SentCommand | None = None
        """The command that was sent with the sandbox's start, until `exec` continues it."""
        self.machine_seen: str | None = None
        """Identifies this run of the sandbox, to detect a restart; None before the first connection."""

    @abstractmethod
    async def _run(self, argv: tuple[str, ...]) -> ProgramStream:
        """Run a program by one vendor call, as root if the vendor allows it, else as the vendor's user.

        Raises SandboxNotFoundError, ProviderUnavailableError and AuthenticationError.
        """

    _root_is_ours: ClassVar[bool] = False
    """Whether each sandbox has its own root file system, so that profile="strict" may change it."""

    def _flags(self, spec: SandboxSpec, user: str | None) -> list[str]:
        """Return the agent's flags. By default the vendor enforces the lifetime, so the agent need not."""
        return agent_flags(replace(spec, lifetime=None, detach=False), user=user)

    async def _upload(self, path: str, data: bytes) -> None:
        """Write a new file as the user that `_run` uses, by one request that may run concurrently.

        Raises UploadRefusedError if certainly no complete file was written, and what `_run` raises.
        """
        raise NotImplementedError

    def _grace(self, stream: ByteStream) -> float:
        return _GRACE

    def _windows(self) -> Windows:
        return FAR

    async def begin(
        self, spec: SandboxSpec, first: FirstCommand | None = None, *, user: str | None = None
    ) -> None:
        """Install the agent in a new sandbox, start it and become its owner.

        `first` is sent with the start if possible. `user` is the commands' user if neither the spec nor
        its profile sets one. Returns once the workdir exists and the main command has started. Raises
        SandboxStartError with the reason, ProviderUnavailableError after 60 s, and what `_run` raises.
        """
        is_strict = spec.profile == "strict" and self._root_is_ours
        if is_strict:
            user = _STRICT_USER
        flags = self._flags(spec, spec.user or user)
        common = ""
        if spec.reuse == "reset":
            flags.append("--resettable")
            common = spec.workdir or DEFAULT_WORKDIR  # successive jobs share it
        verb, image = "strict" if is_strict else "start", spec.image or ""
        if spec.snapshot is not None:
            image = _SNAPSHOTS
        assumed = self.hosted.assumed_agents.get(image, install.LIKELY)
        uploads = self.hosted.can_upload()
        with anyio.move_on_after(_START_SECONDS) as scope:
            while True:
                upload = ""
                if uploads and assumed:
                    upload = install.upload_path(assumed, self.id)
                greeting = self._greeting(spec, first) if upload or not assumed else None
                if greeting is None:
                    upload = ""  # an upload would save no round trip
                argv = install.command(
                    _socket(self.id),
                    verb,
                    flags,
                    assumed=assumed,
                    common=common,
                    upload=upload,
                    first=b"" if greeting is None else greeting.data,
                )
                data = b"" if upload else install.data_of(assumed)
                work = self._start_agent(argv, data, greeting or spec, first)
                try:
                    if upload:
                        sending = self._upload(upload, install.packed(assumed))
                        had = await _run_with_dependency(work, sending)
                    else:
                        had = await work
                except install.WantsError as error:
                    assumed = self.hosted.assumed_agents[image] = error.arch
                    continue
                except UploadRefusedError as error:
                    uploads = False
                    self.hosted.takes_uploads = self.hosted.takes_uploads and not error.lasting
                    if first is not None:
                        first.refuted()  # no agent can have started, so the command has not run
                    continue
                if had:
                    self.hosted.assumed_agents[image] = install.PRESENT
                return
        if scope.cancelled_caught:
            raise ProviderUnavailableError(
                f"the agent of sandbox {self.id!r} did not start within {_START_SECONDS:g} s"
            )

    async def _start_agent(
        self,
        argv: tuple[str, ...],
        data: bytes,
        start: Greeting | SandboxSpec,
        first: FirstCommand | None,
    ) -> bool:
        """Run the program that starts the agent, and become the agent's owner.

        `data` is the agent binary for the program's stdin. Return whether the sandbox already had it.
        """
        try:
            stream = await self._run(argv)
        except SandboxError as error:
            if first is not None and not is_ambiguous(error):
                first.refuted()
            raise
        found = install.Found(stream, data)
        await self._own(found, start, first)
        return found.had_agent

    def _greeting(self, spec: SandboxSpec, first: FirstCommand | None) -> Greeting | None:
        """Return the greeting to put into the start request, or None to send it on the stream.

        Vendors log and list command lines, so the greeting holds neither secrets nor a command's variables.
        """
        if spec.secrets:
            return None
        payload = encode(Kind.HELLO, 0, requests.hello(config_of(spec), self._windows()))
        if len(payload) > _LARGEST_GREETING:
            return None
        if first is not None and not first.command.env:
            sent = exec_payload(first.command)
            both = payload + encode(Kind.EXEC, FIRST_STREAM, sent)
            if len(both) <= _LARGEST_GREETING and first.claim():
                return Greeting.of(both, _GRACE, first=sent)
        return Greeting.of(payload, _GRACE)

    async def _own(
        self,
        found: install.Found,
        start: Greeting | SandboxSpec,
        first: FirstCommand | None,
    ) -> None:
        """Become the owner of an agent; send `first` unless the greeting contains it."""
        config = start if isinstance(start, Greeting) else config_of(start)
        if first is not None and not config.first:
            sent = exec_payload(first.command)
            if len(sent) <= _LARGEST_FIRST and first.claim():
                config = replace(config, first=sent)
        try:
            client = await self.attach(found, config, lifeline=False)
        except SandboxStartError as error:
            ended = error.__cause__
            refused = isinstance(ended, ConnectionEndedError) and ended.refused
            if first is not None and (found.is_over or refused):
                first.refuted()
            match found.failure:
                case install.WantsError():
                    raise found.failure from None
                case install.NoAgentError():
                    raise SandboxStartError(
                        f"the agent of sandbox {self.id!r} did not start: {found.failure}"
                    ) from found.failure
            if not found.machine or (isinstance(ended, ConnectionEndedError) and not ended.reason):
                raise self._broke() from error
            raise
        self.machine_seen = found.machine
        if first is not None and client.first is not None:
            self.first = SentCommand(first.command, client, client.first)

    async def exec(self, command: Command, output: Output) -> Exit:
        first = self.first
        if first is None or first.command is not command:
            return await super().exec(command, output)
        self.first = None
        try:
            return await requests.follow(first.stream, command, output)
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, first.client, None, once=True) from error

    async def _connect(self) -> ByteStream:
        try:
            stream = await self._run(install.command(_socket(self.id), "find"))
        except SandboxNotFoundError as error:
            if self.machine_seen is None or self.deletions:
                raise
            ended = await self._why_ended("")
            if isinstance(ended, SandboxTerminatedError) and not ended.by_command:
                raise  # `ended` says no more than "not found"
            raise ended from error
        try:
            found = await install.after_preamble(stream)
        except install.NoAgentError as error:
            raise await self._why_none(error) from error
        except BROKEN as error:
            raise self._broke() from error
        self.machine_seen = self.machine_seen or found.machine
        return found

    def _broke(self) -> ProviderUnavailableError:
        return ProviderUnavailableError(
            f"the connection to sandbox {self.id!r} broke before its agent replied"
        )

    async def _why_none(self, error: install.NoAgentError) -> SandboxError:
        """Return the error for a sandbox that runs programs but has no agent."""
        try:
            await self.info()
        except SandboxNotFoundError:
            return await self._why_ended("")
        except SandboxError as failure:
            return failure
        before = self.machine_seen
        if error.machine is None or before is None:
            return ProviderUnavailableError(f"sandbox {self.id!r} has no agent: {error}")
        same = before == error.machine
        why = (
            "a program in it ended its agent"
            if same
            else "the vendor restarted it, and its processes are gone"
        )
        return SandboxTerminatedError(
            f"sandbox {self.id!r} cannot be used any more: {why} ({error})",
            by_command=same,
        )

    async def _why_ended(self, reason: str) -> SandboxError:
        if reason:
            return await super()._why_ended(reason)
        try:
            by_command = await self._ended_by_itself()
        except SandboxError:
            by_command = False  # the vendor has no record of it any more
        why = (
            "a program in it ended its first process"
            if by_command
            else "its lifetime passed, or it was stopped"
        )
        return SandboxTerminatedError(
            f"sandbox {self.id!r} has ended: {why}",
            by_command=by_command,
        )

    async def _ended_by_itself(self) -> bool:
        """Return whether the vendor says that a sandbox ended without a request; by default False.

        Then its first process exited, which only its own commands can cause. Overridden for vendors that
        say so. Raises SandboxError.
        """
        return False


class HostedProvider(AgentProvider[BoxT]):
    """`AgentProvider` for a vendor that runs programs in its sandboxes.

    A subclass implements `create` and `list`. Its `create` makes a sandbox, awaits `box.begin(spec, first)`,
    and deletes the sandbox if that fails.
    """

    takes_uploads: bool = False
    """Whether `HostedBox._upload` works, as far as is known; a lasting refusal sets it to False."""

    # Any: the class of a box takes its provider's own type.
    def __init__(self) -> None:
        super().__init__()
        self.assumed_agents: dict[str, str] = {}
        """The assumption about the sandboxes of each image: the architecture of the agent that they need,
        or `install.PRESENT`."""

    def completed(self, error: SandboxError, sandbox_id: str | None) -> SandboxError:
        # Safe, because calls that must not be repeated use the agent, see `_agent.box`.
        return super().completed(public(error), sandbox_id)

    def can_upload(self) -> bool:
        """Return whether `HostedBox._upload` may run at the same time as the program that waits for its file."""
        return self.takes_uploads


def _socket(sandbox_id: str) -> str:
    """Return the agent's abstract socket. It contains the id, because sandboxes may share a network
    namespace."""
    return f"@sandboxkit-{sandbox_id}"


async def _run_with_dependency(
    work: Coroutine[Any, Any, _T], needed: Coroutine[Any, Any, None]
) -> _T:
    """Run two calls concurrently and return the result of `work`, or raise its error.

    `work` depends on `needed`. If `needed` fails and `work` has not ended a second later, `work` is
    cancelled and the error of `needed` raised. If `work` ends in spite of it, the error is ignored, because
    only the response of `needed` was lost. Both calls have ended when this returns.
    """
    working, other = asyncio.create_task(work), asyncio.create_task(needed)
    try:
        await asyncio.wait([working, other], return_when=asyncio.FIRST_COMPLETED)
        failed = other.done() and other.exception() is not None
        await asyncio.wait([working], timeout=_LATE_SECONDS if failed else None)
        if not working.done():
            other.result()
        await asyncio.wait([other], timeout=_LATE_SECONDS)
        return working.result()
    finally:
        for task in (working, other):
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(working, other, return_exceptions=True)
