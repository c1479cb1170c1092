"""What the hosted providers share: the agent, put into a vendor's sandbox and spoken to by its calls."""

from abc import abstractmethod
from typing import ClassVar

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers._agent.frames import FAR, Windows
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags, config_of
from sandboxkit.providers._agent.link import BROKEN
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers._hosted import install, strict
from sandboxkit.types import SandboxSpec

__all__ = ["HostedAgentProvider", "ProgramStream"]

_GRACE = 60.0
_START_SECONDS = 60.0


class ProgramStream(ByteStream):
    """A program in a sandbox by one call of a vendor's: its stdin and stdout, 8-bit exact.

    One task receives and one sends; any other may close it, which ends the program. It raises
    EndOfStream when the program has ended, and BrokenResourceError when the call broke. It never
    loses anything without that.
    """

    said: bytes = b""
    """The newest of what the program wrote to stderr, where that is apart."""

    async def send_eof(self) -> None:
        raise NotImplementedError("its input ends when it is closed")


class HostedAgentProvider(AgentProvider):
    """`AgentProvider` for a vendor that runs programs in its sandboxes.

    A subclass implements `create`, `list`, `get`, `delete` and `_run`. Its `create` makes a sandbox
    that others run as well, awaits `self._begin(id, spec)`, and deletes it when that fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self._machines_seen: dict[str, str] = {}
        """What tells a sandbox from the same one started again, of those that we have spoken to."""

    @abstractmethod
    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        """Run a program by one call: as root where the vendor lets us, else as its own user.

        Raised: SandboxNotFoundError, ProviderUnavailableError, AuthenticationError.
        """

    _root_is_ours: ClassVar[bool] = False
    """Whether all of a sandbox's root is its own, so that `profile="strict"` may change it."""

    def _grace(self) -> float:
        return _GRACE

    def _windows(self) -> Windows:
        return FAR

    async def _begin(self, sandbox_id: str, spec: SandboxSpec, *, user: str | None = None) -> None:
        """Put the agent into a new sandbox, start it and become its owner.

        `user` is the commands' where neither the spec nor its profile names one. Returns when the workdir exists and the
        main command has started.
        Raised: SandboxStartError with the reason, ProviderUnavailableError when nothing is said
        for a minute, what `_run` raises.
        """
        is_strict = spec.profile == "strict" and self._root_is_ours
        if is_strict:
            user = strict.USER
        flags = [flag for flag in agent_flags(spec, user=spec.user or user) if flag != "--detach"]
        # A vendor ends its sandboxes itself.
        flags = [flag for flag in flags if not flag.startswith("--lifetime=")]
        common = ""
        if spec.reuse == "reset":
            flags.append("--resettable")
            common = spec.workdir or DEFAULT_WORKDIR  # which each job has after the other
        argv = install.command(_socket(sandbox_id), flags, strict=is_strict, common=common)
        with anyio.move_on_after(_START_SECONDS) as scope:
            stream = await self._run(sandbox_id, argv)
            await self._own(sandbox_id, stream, spec)
        if scope.cancelled_caught:
            raise ProviderUnavailableError(
                f"the agent of sandbox {sandbox_id!r} did not start within {_START_SECONDS:g} s",
                provider=self.name,
                sandbox_id=sandbox_id,
            )

    async def _own(self, sandbox_id: str, stream: ProgramStream, spec: SandboxSpec) -> None:
        try:
            found = await install.lead(stream)
        except install.NoAgentError as error:
            raise SandboxStartError(
                f"the agent of sandbox {sandbox_id!r} did not start: {error}",
                provider=self.name,
                sandbox_id=sandbox_id,
            ) from error
        except BROKEN as error:
            raise self._broke(sandbox_id) from error
        self._machines_seen[sandbox_id] = found.machine
        await self._attach(sandbox_id, found, config_of(spec), lifeline=False)

    async def _connect(self, sandbox_id: str) -> ByteStream:
        stream = await self._run(sandbox_id, install.command(_socket(sandbox_id)))
        try:
            found = await install.lead(stream)
        except install.NoAgentError as error:
            raise await self._why_none(sandbox_id, error) from error
        except BROKEN as error:
            raise self._broke(sandbox_id) from error
        self._machines_seen.setdefault(sandbox_id, found.machine)
        return found

    def _broke(self, sandbox_id: str) -> ProviderUnavailableError:
        return ProviderUnavailableError(
            f"the connection to sandbox {sandbox_id!r} broke before its agent was heard of",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _why_none(self, sandbox_id: str, error: install.NoAgentError) -> SandboxError:
        """The error for a sandbox that runs programs, and has no agent."""
        try:
            await self.get(sandbox_id)
        except SandboxNotFoundError:
            return await self._why_ended(sandbox_id, "")
        except SandboxError as failure:
            return failure
        before = self._machines_seen.get(sandbox_id)
        if error.machine is None or before is None:
            return ProviderUnavailableError(
                f"sandbox {sandbox_id!r} has no agent: {error}",
                provider=self.name,
                sandbox_id=sandbox_id,
            )
        same = before == error.machine
        why = (
            "what ran in it ended its agent"
            if same
            else "the vendor has started it again, and what ran in it is gone"
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
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} has ended: its lifetime passed, or it was stopped",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _forget(self, sandbox_id: str) -> None:
        self._machines_seen.pop(sandbox_id, None)
        await super()._forget(sandbox_id)


def _socket(sandbox_id: str) -> str:
    """Abstract, and no other sandbox's: some share their network with others."""
    return f"@sandboxkit-{sandbox_id}"
