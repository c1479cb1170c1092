"""The daytona provider: sandboxes made, found and removed, and the way to the agent in each."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import ClassVar

import anyio
from daytona_api_client_async import Sandbox, SandboxListItem
from daytona_api_client_async import SandboxState as DaytonaState

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers._agent.frames import Windows
from sandboxkit.providers._hosted.agent import HostedAgentProvider, ProgramStream
from sandboxkit.providers._hosted.boundary import public
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.deadline import LAST_LOOK
from sandboxkit.providers._hosted.lifetime import Heartbeats
from sandboxkit.providers._hosted.unclear import UnclearError, repeatable
from sandboxkit.providers.daytona import _spec
from sandboxkit.providers.daytona._account import Account
from sandboxkit.providers.daytona._ends import Ends
from sandboxkit.providers.daytona._errors import NAME, ConflictError, start_error
from sandboxkit.providers.daytona._terminal import Terminals
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SandboxState

__all__ = ["DaytonaProvider"]

_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_PAGE = 100
_POLL_SECONDS = 0.1
_GONE = {DaytonaState.DESTROYED, DaytonaState.DESTROYING}
_FAILED = {DaytonaState.ERROR, DaytonaState.BUILD_FAILED}
_STOPPED = {
    *_FAILED,
    DaytonaState.STOPPED,
    DaytonaState.STOPPING,
    DaytonaState.ARCHIVED,
    DaytonaState.ARCHIVING,
    DaytonaState.PAUSED,
    DaytonaState.PAUSING,
}
_WINDOWS = Windows(from_agent=512 << 10, to_agent=2 << 20)
"""Daytona drops whoever is 256 messages behind, and a terminal makes one of 4 KiB at most."""


@public
class DaytonaProvider(HostedAgentProvider):
    """Sandboxes of the account that DAYTONA_API_KEY names.

    An image is a registry's, or a snapshot of the account as "snapshot:NAME".
    """

    name: ClassVar[str] = NAME

    def __init__(
        self, *, api_key: str | None = None, timeout: float = 60.0, build_timeout: float = 600.0
    ) -> None:
        """`api_key` defaults to DAYTONA_API_KEY. In seconds, `timeout` bounds what Daytona may take to
        make a sandbox, and `build_timeout` how long that may take to start; other answers have
        shorter bounds, unless the timeout is shorter still."""
        super().__init__()
        self._account = Account(api_key, timeout)
        self._build_timeout = build_timeout
        self._toolboxes: dict[str, str] = {}
        """Where the toolbox of each sandbox is."""
        self._deleting: set[str] = set()
        self._heartbeats = Heartbeats(self._set_ttl)
        self._ends = Ends(self.delete)
        self._creations = Creations(self.delete, provider=NAME)

    def check(self, spec: SandboxSpec) -> None:
        self._account.check()
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        name = f"sandboxkit-{secrets.token_hex(16)}"
        sandbox_id = await self._creations.once(
            lambda: self._create(spec, name),
            lambda: self._named(name),
            left=f"a sandbox named {name!r}",
        )
        async with self._creations.preparing(sandbox_id):
            await self._started(sandbox_id, spec)
            await self._begin(sandbox_id, spec)
        if spec.lifetime is None:
            self._heartbeats.start(sandbox_id)
        else:
            self._ends.plan(sandbox_id, spec.lifetime)
        return sandbox_id

    async def _create(self, spec: SandboxSpec, name: str) -> str:
        what = f"create a sandbox from {spec.image or 'the default snapshot'}"
        body = _spec.request(spec, name, self._account.target)
        made = await self._account.call(
            self._account.sandboxes().create_sandbox(body),
            what=what,
            seconds=self._account.timeout,
        )
        return made.id

    async def _named(self, name: str) -> list[str]:
        try:
            return [(await self._detail(name)).id]
        except SandboxNotFoundError:
            return []

    async def _started(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Wait until programs can run."""
        found = await self._asked(sandbox_id)
        with anyio.move_on_after(self._build_timeout) as scope:
            while found.state is not DaytonaState.STARTED:
                if found.state in _STOPPED or found.state in _GONE:
                    raise _not_started(found, spec)
                await anyio.sleep(_POLL_SECONDS)
                found = await self._asked(sandbox_id)
        if scope.cancelled_caught:
            queued = found.state is DaytonaState.PENDING_BUILD
            kind = CapacityError if queued else SandboxStartError
            raise kind(
                f"daytona did not start a sandbox within {self._build_timeout:g} s, after which "
                f"its state is {_state(found)}; give the provider a longer build_timeout",
                provider=NAME,
                sandbox_id=sandbox_id,
            )
        self._toolboxes[sandbox_id] = found.toolbox_proxy_url

    def _windows(self) -> Windows:
        return _WINDOWS

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        try:
            return await (await self._terminals(sandbox_id)).run(argv)
        except (AuthenticationError, SandboxNotFoundError, UnclearError) as error:
            raise await self._why_no_way(sandbox_id, error) from error
        except SandboxStartError as error:
            if sandbox_id not in self._machines_seen:
                raise
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} cannot be used any more: what ran in it has changed how its "
                f"shells start ({error})",
                provider=NAME,
                sandbox_id=sandbox_id,
                by_command=True,
            ) from error

    async def _why_no_way(self, sandbox_id: str, error: SandboxError) -> SandboxError:
        """Where the way into a sandbox fails: because that has ended, or for another reason?

        To those who ask for one that has ended, what is before it says 400 or 401.
        """
        try:
            await self._detail(sandbox_id, seconds=min(LAST_LOOK, self._account.timeout))
        except SandboxNotFoundError as gone:
            return gone
        except SandboxError as failure:
            error.add_note(f"and whether the sandbox still runs is not known: {failure}")
        if isinstance(error, AuthenticationError):
            return error
        known = ProviderUnavailableError(
            f"daytona has sandbox {sandbox_id!r}, but not the way into it ({error}); try again"
            if isinstance(error, SandboxNotFoundError)
            else str(error),
            provider=NAME,
            sandbox_id=sandbox_id,
        )
        for note in getattr(error, "__notes__", ()):
            known.add_note(note)
        return known

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        wanted = {**tags, _spec.MARKER: "1"}
        cursor: str | None = None
        while True:
            page = await self._account.call(
                self._account.sandboxes().list_sandboxes(
                    labels=json.dumps(wanted), limit=_PAGE, cursor=cursor
                ),
                what="list sandboxes",
            )
            for found in page.items:
                if found.state not in _GONE and wanted.items() <= found.labels.items():
                    yield _info(found)
            cursor = page.next_cursor
            if not cursor:
                return

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _info(await self._detail(sandbox_id))

    async def delete(self, sandbox_id: str) -> None:
        await self._heartbeats.stop(sandbox_id)
        self._ends.forget(sandbox_id)
        self._deleting.add(sandbox_id)
        try:
            await self._forget(sandbox_id)
        finally:
            try:
                await self._delete(sandbox_id)
            finally:
                self._deleting.discard(sandbox_id)

    async def _delete(self, sandbox_id: str) -> None:
        if not _ID.fullmatch(sandbox_id):
            return
        with anyio.move_on_after(self._account.timeout):
            while True:
                try:
                    await repeatable(
                        lambda: self._account.call(
                            self._account.sandboxes().delete_sandbox(sandbox_id),
                            what="delete a sandbox",
                            sandbox_id=sandbox_id,
                        )
                    )
                except SandboxNotFoundError:
                    pass
                except ConflictError:  # it is changing its state, and can be deleted after that
                    await anyio.sleep(_POLL_SECONDS)
                    continue
                return
        raise UnclearError(
            f"daytona did not delete a sandbox within {self._account.timeout:g} s; try again",
            provider=NAME,
            sandbox_id=sandbox_id,
        )

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        seconds = _spec.minutes(lifetime) * 60
        await self._heartbeats.stop(sandbox_id)
        await self._set_ttl(sandbox_id, seconds)
        self._ends.plan(sandbox_id, lifetime)

    async def diagnose(self) -> Diagnosis:
        isolation = "a container or virtual machine of its own on Daytona's servers"
        try:
            self._account.check()
            await self._account.call(
                self._account.sandboxes().list_sandboxes(limit=1), what="list sandboxes"
            )
        except SandboxError as error:
            return Diagnosis(
                available=False,
                isolation=isolation,
                detail="no access to Daytona",
                remedy=str(error),
            )
        where = self._account.url
        return Diagnosis(available=True, isolation=isolation, detail=f"the key works at {where}")

    async def aclose(self) -> None:
        try:
            await self._creations.settle()
        finally:
            await self._heartbeats.aclose()
            self._ends.close()
            await super().aclose()
            await self._account.aclose()

    async def _terminals(self, sandbox_id: str) -> Terminals:
        proxy = self._toolboxes.get(sandbox_id)
        if proxy is None:
            proxy = self._toolboxes[sandbox_id] = (await self._detail(sandbox_id)).toolbox_proxy_url
        return Terminals(self._account, sandbox_id, proxy)

    def _is_deleting(self, sandbox_id: str) -> bool:
        return sandbox_id in self._deleting

    async def _forget(self, sandbox_id: str) -> None:
        self._toolboxes.pop(sandbox_id, None)
        await super()._forget(sandbox_id)

    async def _asked(self, sandbox_id: str, *, seconds: float | None = None) -> Sandbox:
        if not _ID.fullmatch(sandbox_id):
            raise _not_found(sandbox_id)
        return await self._account.call(
            self._account.sandboxes().get_sandbox(sandbox_id),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
            seconds=seconds,
        )

    async def _detail(self, sandbox_id: str, *, seconds: float | None = None) -> Sandbox:
        found = await self._asked(sandbox_id, seconds=seconds)
        if found.state in _GONE or found.labels.get(_spec.MARKER) != "1":
            raise _not_found(sandbox_id)
        return found

    async def _set_ttl(self, sandbox_id: str, seconds: int) -> None:
        if not _ID.fullmatch(sandbox_id):
            raise _not_found(sandbox_id)
        await self._account.call(
            self._account.sandboxes().set_ttl(sandbox_id, -(-seconds // 60)),
            what="renew a sandbox",
            sandbox_id=sandbox_id,
        )


def _not_found(sandbox_id: str) -> SandboxNotFoundError:
    return SandboxNotFoundError(
        f"no sandbox {sandbox_id!r}; it may have ended", provider=NAME, sandbox_id=sandbox_id
    )


def _not_started(found: Sandbox, spec: SandboxSpec) -> SandboxError:
    image = spec.image or "the default snapshot"
    if found.queue_timed_out_at is not None or found.spot_evicted_at is not None:
        waited = "" if found.queue_timeout is None else f" within {found.queue_timeout} minutes"
        return CapacityError(
            f"daytona had no room for a sandbox from {image}{waited}, and gave it up at "
            f"{found.queue_timed_out_at or found.spot_evicted_at}; try again later",
            provider=NAME,
            sandbox_id=found.id,
        )
    return start_error(found.error_reason or f"its state is {_state(found)}", image, found.id)


def _state(found: Sandbox) -> str:
    return "unknown" if found.state is None else found.state.value


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None  # another version's way to write it


def _info(found: Sandbox | SandboxListItem) -> SandboxInfo:
    state = SandboxState.STARTING
    if found.state is DaytonaState.STARTED:
        state = SandboxState.RUNNING
    elif found.state in _STOPPED:
        state = SandboxState.STOPPED
    return SandboxInfo(
        id=found.id,
        provider=NAME,
        state=state,
        tags=dict(found.labels),
        image=found.snapshot,
        created_at=_time(found.created_at),
        expires_at=_time(found.auto_destroy_at),
    )
