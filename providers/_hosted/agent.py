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
from sandboxkit.providers._agent.client import (
    AgentClient,
    AgentStream,
    CallError,
    ConnectionEndedError,
    SilentError,
)
from sandboxkit.providers._agent.frames import FAR, FIRST_STREAM, Kind, Windows, encode
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags, config_of
from sandboxkit.providers._agent.link import BROKEN, Greeting
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.ambiguous import is_ambiguous
from sandboxkit.providers._hosted.beside import beside
from sandboxkit.types import Command, Exit, SandboxSpec

__all__ = ["HostedAgentProvider", "HostedInstance", "ProgramStream", "UploadRefusedError"]

_STRICT_USER = "65534:65534"
"""Runs the commands of a strict sandbox, unless the spec names a user. No vendor mounts the root file system
read-only; this user owns no files, and before the first command world write permission is removed from
everything except folders with the sticky bit, such as /tmp."""
_GRACE = 60.0
_START_SECONDS = 60.0
_SNAPSHOTS = "snapshots of sandboxes"
"""The key of the one guess for all snapshots, of which there may be thousands."""
_LARGEST_GREETING = 8 << 10
"""Bytes that a start request carries for the agent; Modal limits a command line to 64 KiB in all."""
_LARGEST_FIRST = 256 << 10
"""Bytes of a command that is sent along with a start; a longer one follows when the agent has answered."""


class UploadRefusedError(Exception):
    """A sandbox did not take the file of `_upload`, and has no complete file."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.lasting = status != 429 and status < 500
        """Whether later uploads would be refused as well."""


class ProgramStream(ByteStream):
    """stdin and stdout of a program that one vendor call runs in a sandbox, as binary data.

    One task receives and one sends; any task may close it, which ends the program. It raises
    EndOfStream when the program has ended and BrokenResourceError when the call broke, and loses no
    data otherwise.
    """

    diagnostics: bytes = b""
    """The last output on stderr, if the vendor separates it from stdout."""

    async def send_eof(self) -> None:
        raise NotImplementedError("its input ends when it is closed")


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command that was sent along with its sandbox's start; `exec` of the same object takes it over."""

    command: Command
    client: AgentClient
    stream: AgentStream


@dataclass(eq=False)
class HostedInstance(Instance):
    """The state that this process keeps about a vendor's sandbox."""

    first: SentCommand | None = None
    """The command that was sent along with its start, until `exec` takes it over."""
    machine_seen: str | None = None
    """Identifies this run of the sandbox, to detect a restart; None before the first connection."""
    timer: "asyncio.Task[None] | None" = None
    """The background task that renews the sandbox or ends it in time."""

    async def set_timer(self, work: Coroutine[Any, Any, None] | None) -> None:
        """Cancel the timer, and run `work` in the background as the new one, unless it is None."""
        before, self.timer = self.timer, None if work is None else asyncio.create_task(work)
        if before is not None and before is not asyncio.current_task():
            before.cancel()
            await asyncio.wait([before])

    async def aclose(self) -> None:
        await self.set_timer(None)
        await super().aclose()


HostedInstanceT = TypeVar("HostedInstanceT", bound=HostedInstance)


class HostedAgentProvider(AgentProvider[HostedInstanceT]):
    """`AgentProvider` for a vendor that runs programs in its sandboxes.

    A subclass implements `create_for`, `list`, `get`, `delete` and `_run`. Its `create_for` makes a
    sandbox, awaits `self._begin(id, spec, first)`, and deletes the sandbox if that fails.
    """

    def __init__(self, kind: type[HostedInstanceT]) -> None:
        super().__init__(kind)
        self._guesses: dict[str, str] = {}
        """The guess for each image: which agent its sandboxes need, see `install.command`."""

    @abstractmethod
    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        """Run a program by one call, as root if the vendor allows it, else as the vendor's user.

        Raises SandboxNotFoundError, ProviderUnavailableError and AuthenticationError.
        """

    _root_is_ours: ClassVar[bool] = False
    """Whether a sandbox shares its root file system with no other, so that "strict" may change it."""

    _takes_uploads: bool = False
    """Whether `_upload` works, as far as is known; a lasting refusal sets it to False."""

    def _can_upload(self) -> bool:
        """Whether `_upload` may run beside the program that waits for its file."""
        return self._takes_uploads

    async def _upload(self, sandbox_id: str, path: str, data: bytes) -> None:
        """Write a new file as the user that `_run` uses, in one request that may run beside others.

        Raises UploadRefusedError if it is certain that no complete file was written, and what `_run` raises.
        """
        raise NotImplementedError

    def _grace(self, stream: ByteStream) -> float:
        return _GRACE

    def _windows(self) -> Windows:
        return FAR

    async def _begin(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        first: FirstCommand | None = None,
        *,
        user: str | None = None,
    ) -> None:
        """Install the agent in a new sandbox, start it and become its owner.

        `first` is sent along if possible. `user` runs commands if neither the spec nor its profile names
        a user. Returns once the workdir exists and the main command has started. Raises
        SandboxStartError with the reason, ProviderUnavailableError after 60 s, and what `_run` raises.
        """
        is_strict = spec.profile == "strict" and self._root_is_ours
        if is_strict:
            user = _STRICT_USER
        flags = [flag for flag in agent_flags(spec, user=spec.user or user) if flag != "--detach"]
        # The vendor enforces the lifetime, so the agent need not.
        flags = [flag for flag in flags if not flag.startswith("--lifetime=")]
        common = ""
        if spec.reuse == "reset":
            flags.append("--resettable")
            common = spec.workdir or DEFAULT_WORKDIR  # successive jobs share it
        verb, image = "strict" if is_strict else "start", spec.image or ""
        if spec.snapshot is not None:
            image = _SNAPSHOTS
        guess = self._guesses.get(image, install.LIKELY)
        uploads = self._can_upload()
        with anyio.move_on_after(_START_SECONDS) as scope:
            while True:
                upload = ""
                if uploads and guess:
                    upload = install.upload_path(guess, sandbox_id)
                greeting = self._greeting(spec, first) if upload or not guess else None
                if greeting is None:
                    upload = ""  # it would save no round trip
                argv = install.command(
                    _socket(sandbox_id),
                    verb,
                    flags,
                    guess=guess,
                    common=common,
                    upload=upload,
                    first=b"" if greeting is None else greeting.data,
                )
                data = b"" if upload else install.data_of(guess)
                work = self._start_agent(sandbox_id, argv, data, greeting or spec, first)
                try:
                    if upload:
                        sending = self._upload(sandbox_id, upload, install.packed(guess))
                        had = await beside(work, sending)
                    else:
                        had = await work
                except install.WantsError as error:
                    guess = self._guesses[image] = error.arch
                    continue
                except UploadRefusedError as error:
                    uploads = False
                    self._takes_uploads = self._takes_uploads and not error.lasting
                    if first is not None:
                        first.refuted()  # no agent can have started
                    continue
                if had:
                    self._guesses[image] = install.PRESENT
                return
        if scope.cancelled_caught:
            raise ProviderUnavailableError(
                f"the agent of sandbox {sandbox_id!r} did not start within {_START_SECONDS:g} s",
                provider=self.name,
                sandbox_id=sandbox_id,
            )

    async def _start_agent(
        self,
        sandbox_id: str,
        argv: tuple[str, ...],
        data: bytes,
        start: Greeting | SandboxSpec,
        first: FirstCommand | None,
    ) -> bool:
        """Run the program that starts the agent, and own it; return whether the sandbox had the agent."""
        try:
            stream = await self._run(sandbox_id, argv)
        except SandboxError as error:
            if first is not None and not is_ambiguous(error):
                first.refuted()
            raise
        found = install.Found(stream, data)
        await self._own(sandbox_id, found, start, first)
        return found.had

    def _greeting(self, spec: SandboxSpec, first: FirstCommand | None) -> Greeting | None:
        """Return what the start request can carry for the agent, or None to send it on the stream.

        Vendors log and list the command lines that they run, so these carry neither secrets nor the
        variables of a command.
        """
        if spec.secrets:
            return None
        payload = encode(Kind.HELLO, 0, requests.hello(config_of(spec), self._windows()))
        if len(payload) > _LARGEST_GREETING:
            return None
        if first is not None and not first.command.env:
            sent = requests.exec_payload(first.command)
            both = payload + encode(Kind.EXEC, FIRST_STREAM, sent)
            if len(both) <= _LARGEST_GREETING and first.claim():
                return Greeting.of(both, _GRACE, first=sent)
        return Greeting.of(payload, _GRACE)

    async def _own(
        self,
        sandbox_id: str,
        found: install.Found,
        start: Greeting | SandboxSpec,
        first: FirstCommand | None,
    ) -> None:
        """Become the owner of an agent; send `first` unless the greeting has it."""
        config = start if isinstance(start, Greeting) else config_of(start)
        if first is not None and not config.first:
            sent = requests.exec_payload(first.command)
            if len(sent) <= _LARGEST_FIRST and first.claim():
                config = replace(config, first=sent)
        try:
            client = await self._attach(sandbox_id, found, config, lifeline=False)
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
                        f"the agent of sandbox {sandbox_id!r} did not start: {found.failure}",
                        provider=self.name,
                        sandbox_id=sandbox_id,
                    ) from found.failure
            if not found.machine or (isinstance(ended, ConnectionEndedError) and not ended.reason):
                raise self._broke(sandbox_id) from error
            raise
        instance = self._instance(sandbox_id)
        instance.machine_seen = found.machine
        if first is not None and client.first is not None:
            instance.first = SentCommand(first.command, client, client.first)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        instance = self._known(sandbox_id)
        first = instance.first
        if first is None or first.command is not command:
            return await super().exec(sandbox_id, command, output)
        instance.first = None
        try:
            return await requests.follow(first.stream, command, output)
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, sandbox_id, first.client, None, once=True) from error

    async def _connect(self, sandbox_id: str) -> ByteStream:
        try:
            stream = await self._run(sandbox_id, install.command(_socket(sandbox_id), "find"))
        except SandboxNotFoundError as error:
            known = self._known(sandbox_id)
            if known.machine_seen is None or known.deletions:
                raise
            ended = await self._why_ended(sandbox_id, "")
            if isinstance(ended, SandboxTerminatedError) and not ended.by_command:
                raise  # the error would add nothing to "not found"
            raise ended from error
        try:
            found = await install.lead(stream)
        except install.NoAgentError as error:
            raise await self._why_none(sandbox_id, error) from error
        except BROKEN as error:
            raise self._broke(sandbox_id) from error
        known = self._known(sandbox_id)
        known.machine_seen = known.machine_seen or found.machine
        return found

    def _broke(self, sandbox_id: str) -> ProviderUnavailableError:
        return ProviderUnavailableError(
            f"the connection to sandbox {sandbox_id!r} broke before its agent answered",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _why_none(self, sandbox_id: str, error: install.NoAgentError) -> SandboxError:
        """Return the error for a sandbox that runs programs but has no agent."""
        try:
            await self.get(sandbox_id)
        except SandboxNotFoundError:
            return await self._why_ended(sandbox_id, "")
        except SandboxError as failure:
            return failure
        before = self._known(sandbox_id).machine_seen
        if error.machine is None or before is None:
            return ProviderUnavailableError(
                f"sandbox {sandbox_id!r} has no agent: {error}",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        same = before == error.machine
        why = (
            "a program in it ended its agent"
            if same
            else "the vendor restarted it, and its processes are gone"
        )
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} cannot be used any more: {why} ({error})",
            provider=self.name,
            sandbox_id=sandbox_id,
            by_command=same,
        )

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if reason:
            return await super()._why_ended(sandbox_id, reason)
        try:
            by_command = await self._ended_by_itself(sandbox_id)
        except SandboxError:
            by_command = False  # the vendor no longer knows
        why = (
            "a program in it ended its first process"
            if by_command
            else "its lifetime passed, or it was stopped"
        )
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} has ended: {why}",
            provider=self.name,
            sandbox_id=sandbox_id,
            by_command=by_command,
        )

    async def _ended_by_itself(self, sandbox_id: str) -> bool:
        """Whether an ended sandbox ended without a request, according to the vendor.

        Its first process has then exited, which only its own commands can cause. Raises
        SandboxError.
        """
        return False


def _socket(sandbox_id: str) -> str:
    """Return the agent's abstract socket, unique by id: some sandboxes share a network namespace."""
    return f"@sandboxkit-{sandbox_id}"
