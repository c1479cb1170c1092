"""The daytona provider: creates, finds and deletes sandboxes, and connects to their agents."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import ClassVar, TypeVar

import anyio
from daytona_api_client_async import (
    CreateSandboxSnapshot,
    Sandbox,
    SandboxApi,
    SandboxListItem,
    SnapshotDto,
    SnapshotState,
)
from daytona_api_client_async import SandboxState as DaytonaState

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Box, FirstCommand, no_sandbox
from sandboxkit.providers._agent.frames import Windows
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.ambiguous import (
    LAST_LOOK,
    AmbiguousError,
    as_unavailable,
    repeatable,
)
from sandboxkit.providers._hosted.records import SNAPSHOT_NAME
from sandboxkit.providers._hosted.vendor import VendorBox, VendorProvider
from sandboxkit.providers.daytona import _spec
from sandboxkit.providers.daytona._account import DaytonaAccount
from sandboxkit.providers.daytona._errors import NAME, ConflictError, start_error
from sandboxkit.providers.daytona._stream import DaytonaTerminals
from sandboxkit.types import PublicUrl, SandboxInfo, SandboxSpec, SandboxState

_T = TypeVar("_T")
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
"""Daytona disconnects a client 256 messages behind; a terminal's messages have at most 4 KiB."""


class DaytonaBox(VendorBox["DaytonaProvider"]):
    """One sandbox of Daytona."""

    ids = re.compile(r"[A-Za-z0-9-]{1,64}")

    def __init__(self, provider: "DaytonaProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.toolbox: str | None = None
        """The URL of the toolbox's proxy, once known."""

    async def _request(
        self,
        call: Callable[[SandboxApi, str], Awaitable[_T]],
        what: str,
        *,
        seconds: float | None = None,
    ) -> _T:
        """Call Daytona about this sandbox; `call` gets the client and the id."""
        account, sandbox_id = self.backend.account, self._existing_id()
        made = call(account.sandboxes(), sandbox_id)
        return await account.bounded(made, what=what, sandbox_id=sandbox_id, seconds=seconds)

    async def started(self, spec: SandboxSpec) -> None:
        """Wait until programs can run in a sandbox. Raises the error of one that does not start."""
        found = await self._asked()
        with anyio.move_on_after(self.backend.build_timeout) as scope:
            while found.state is not DaytonaState.STARTED:
                if found.state in _STOPPED or found.state in _GONE:
                    raise _not_started(found, spec)
                await anyio.sleep(_POLL_SECONDS)
                found = await self._asked()
        if scope.cancelled_caught:
            queued = found.state is DaytonaState.PENDING_BUILD
            kind = CapacityError if queued else ProviderUnavailableError
            raise kind(
                f"daytona did not start a sandbox within {self.backend.build_timeout:g} s, after which "
                f"its state is {_state(found)}; give the provider a longer build_timeout"
            )
        self.toolbox = found.toolbox_proxy_url

    async def prepare(self, spec: SandboxSpec, first: FirstCommand | None) -> None:
        if spec.native_rules is not None:
            self.backend.check_stored(spec, _spec.allowed(await self._detail()))
        if spec.snapshot is not None and _spec.has_size(spec):
            _spec.check_size(spec, await self._detail())
        await super().prepare(spec, first)
        if spec.lifetime is not None:
            await self.set_timer(self._delete_after(spec.lifetime))

    async def _keep_files(self, name: str, seconds: int | None) -> str:
        lost: SandboxError | None = None
        if seconds is None:  # one that is being removed still has the name
            await self.backend.snapshot_there(name, None)
        try:
            await self._request(
                lambda api, box_id: api.create_sandbox_snapshot(
                    box_id, CreateSandboxSnapshot(name=name)
                ),
                "make a snapshot",
                seconds=self.backend.account.timeout,
            )
        except AmbiguousError as error:
            lost = error  # Daytona may be making it
        with anyio.move_on_after(self.backend.build_timeout):
            found = await self._asked()
            while found.state is DaytonaState.SNAPSHOTTING:
                await anyio.sleep(_POLL_SECONDS)
                found = await self._asked()
            if found.state in _FAILED or not await self.backend.snapshot_there(name, None):
                # Daytona itself gives no reason: the sandbox is as before.
                raise lost or SandboxStartError(
                    f"daytona made no snapshot: {found.error_reason or 'it gives no reason; try again'}"
                )
            return name if seconds is not None else f"{_spec.SNAPSHOT}{name}"
        raise ProviderUnavailableError(
            f"daytona made no snapshot within {self.backend.build_timeout:g} s; give the provider a longer "
            "build_timeout"
        )

    def _windows(self) -> Windows:
        return _WINDOWS

    async def _run(self, argv: tuple[str, ...]) -> ProgramStream:
        try:
            return await (await self._terminals()).run(argv)
        except (AuthenticationError, SandboxNotFoundError, AmbiguousError) as error:
            raise await self._why_no_way(error) from error
        except SandboxStartError as error:
            if self.machine_seen is None:
                raise
            raise SandboxTerminatedError(
                f"sandbox {self.id!r} cannot be used any more: a program in it has changed how its "
                f"shells start ({error})",
                by_command=True,
            ) from error

    async def _ended_by_itself(self) -> bool:
        return (await self._asked()).state is DaytonaState.STOPPED

    async def _why_no_way(self, error: SandboxError) -> SandboxError:
        """Return the error for a failed connection to a sandbox: whether the sandbox still runs decides.

        Daytona's proxy answers 400 or 401 for a sandbox that has ended.
        """
        try:
            found = await self._detail(seconds=min(LAST_LOOK, self.backend.account.timeout))
            if found.state in _STOPPED and self.machine_seen is not None:
                return no_sandbox(self.id)
        except SandboxNotFoundError as gone:
            return gone
        except SandboxError as failure:
            error.add_note(f"and it is unknown whether the sandbox still runs: {failure}")
        if isinstance(error, AuthenticationError):
            return error
        text = f"daytona has sandbox {self.id!r}, but cannot connect to it ({error}); try again"
        return as_unavailable(error, text if isinstance(error, SandboxNotFoundError) else None)

    async def info(self) -> SandboxInfo:
        return _info(await self._detail())

    async def _end(self) -> None:
        try:
            await self.aclose()
        finally:
            await self._delete()

    async def _delete(self) -> None:
        with anyio.move_on_after(self.backend.account.timeout):
            while True:
                try:
                    await repeatable(
                        lambda: self._request(SandboxApi.delete_sandbox, "delete a sandbox")
                    )
                except SandboxNotFoundError:
                    pass
                except ConflictError:  # its state is changing; it can be deleted afterwards
                    await anyio.sleep(_POLL_SECONDS)
                    continue
                return
        raise AmbiguousError(
            f"daytona did not delete a sandbox within {self.backend.account.timeout:g} s; try again"
        )

    async def _delete_after(self, lifetime: float) -> None:
        """Delete the sandbox at its exact lifetime. Daytona's minutes apply if this process has ended."""
        await anyio.sleep(lifetime)
        try:
            await self.delete()
        except SandboxError:
            pass  # Daytona deletes it within a minute

    async def renew(self, lifetime: float) -> None:
        await super().renew(lifetime)
        self.is_ours = True
        self.backend.keep(self)
        await self.set_timer(self._delete_after(lifetime))

    async def _terminals(self) -> DaytonaTerminals:
        if self.toolbox is None:
            self.toolbox = (await self._detail()).toolbox_proxy_url
        return DaytonaTerminals(self.backend.account, self.id, self.toolbox)

    async def _asked(self, *, seconds: float | None = None) -> Sandbox:
        return await self._request(SandboxApi.get_sandbox, "describe a sandbox", seconds=seconds)

    async def _detail(self, *, seconds: float | None = None) -> Sandbox:
        found = await self._asked(seconds=seconds)
        if found.state in _GONE or not self.backend.marks.items() <= found.labels.items():
            raise no_sandbox(self.id)
        return found

    async def public_url(self, port: int) -> PublicUrl:
        found = await self._detail()
        preview = await self._request(
            lambda api, box_id: api.get_port_preview_url(box_id, port), "find the address of a port"
        )
        if found.public:
            return PublicUrl(preview.url, "anyone")
        return PublicUrl(preview.url, "token", {"X-Daytona-Preview-Token": preview.token})

    async def _set_lifetime(self, seconds: int) -> None:
        minutes = _spec.minutes(seconds)
        await self._request(lambda api, box_id: api.set_ttl(box_id, minutes), "renew a sandbox")


class DaytonaProvider(VendorProvider[DaytonaBox, DaytonaAccount]):
    """Sandboxes of the account that DAYTONA_API_KEY names.

    An image is a registry reference, or "snapshot:NAME" for a snapshot of the account.
    """

    name: ClassVar[str] = NAME
    box_type: ClassVar[type[Box]] = DaytonaBox
    native_egress: ClassVar[bool] = True
    rules: ClassVar = _spec.RULES
    longest: ClassVar[int] = 30 * 24 * 3600  # an organization's own limit may be lower
    marks: ClassVar[Mapping[str, str]] = {"sandboxkit.daytona": "1"}
    isolation: ClassVar[str] = "its own container or virtual machine on Daytona's servers"

    def __init__(
        self, *, api_key: str | None = None, timeout: float = 60.0, build_timeout: float = 600.0
    ) -> None:
        """`api_key` defaults to $DAYTONA_API_KEY. `timeout` (s) limits the creation of a sandbox, and
        `build_timeout` (s) the time that it takes to start. Other calls have shorter limits, which
        `timeout` can only lower."""
        super().__init__(DaytonaAccount(api_key, timeout))
        self.build_timeout = build_timeout

    def check_pause(self) -> None:
        raise ConfigurationError(
            "provider 'daytona' cannot pause a sandbox: Daytona pauses virtual machines only, not containers, "
            "and its stop ends all processes"
        )

    async def _bare(self, spec: SandboxSpec) -> DaytonaBox:
        box = await super()._bare(spec)
        if box.toolbox is None:
            async with self._creations.preparing(box):
                await box.started(spec)
        return box

    async def _create(self, spec: SandboxSpec, key: str) -> DaytonaBox:
        tags, seconds = self.tags_of(spec), self.seconds(spec.lifetime)
        body = _spec.request(spec, key, tags, seconds, self.account.target)
        made = await self.account.bounded(
            self.account.sandboxes().create_sandbox(body),
            what=f"create a sandbox from {_source(spec)}",
            seconds=self.account.timeout,
        )
        box = self.box(made.id)
        if made.state is DaytonaState.STARTED and made.toolbox_proxy_url:  # from a warm pool
            box.toolbox = made.toolbox_proxy_url
        return box

    async def _created(self, key: str) -> Sequence[DaytonaBox]:
        with suppress(SandboxNotFoundError):
            return [self.box((await self.box(key).info()).id)]
        return []

    def _may_bake(self, spec: SandboxSpec) -> bool:
        return _spec.fits_snapshot(spec) and super()._may_bake(spec)

    async def snapshot_there(self, name: str, reference: str | None) -> str | None:
        with anyio.move_on_after(self.account.timeout):
            while (found := await self._snapshot_named(name)) is not None:
                if found.state is not SnapshotState.REMOVING:
                    return f"{_spec.SNAPSHOT}{name}"
                await anyio.sleep(_POLL_SECONDS)
        return None

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        number, pages = 1, 1
        while number <= pages:
            page = await self.account.bounded(
                self.account.snapshots().get_all_snapshots(
                    page=number, limit=_PAGE, name=SNAPSHOT_NAME
                ),
                what="list snapshots",
            )
            for found in page.items:
                if found.state is not SnapshotState.REMOVING:
                    yield found.name
            number, pages = number + 1, page.total_pages

    async def remove_snapshot(self, reference: str) -> None:
        found = await self._snapshot_named(reference.removeprefix(_spec.SNAPSHOT))
        if found is not None:
            await self.account.bounded(
                self.account.snapshots().remove_snapshot(found.id), what="remove a snapshot"
            )

    async def _snapshot_named(self, name: str) -> SnapshotDto | None:
        try:
            return await self.account.bounded(
                self.account.snapshots().get_snapshot(name),
                what="look for a snapshot",
                sandbox_id=name,
            )
        except SandboxNotFoundError:
            return None

    async def _listed(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        cursor: str | None = None
        while True:
            page = await self.account.bounded(
                self.account.sandboxes().list_sandboxes(
                    labels=json.dumps(tags), limit=_PAGE, cursor=cursor
                ),
                what="list sandboxes",
            )
            for found in page.items:
                if found.state not in _GONE:
                    yield _info(found)
            cursor = page.next_cursor
            if not cursor:
                return

    async def _reached(self) -> tuple[str, str]:
        await self.account.bounded(
            self.account.sandboxes().list_sandboxes(limit=1), what="list sandboxes"
        )
        return self.isolation, f"the key works at {self.account.url}"


def _source(spec: SandboxSpec) -> str:
    return spec.snapshot or spec.image or "the default snapshot"


def _not_started(found: Sandbox, spec: SandboxSpec) -> SandboxError:
    image = _source(spec)
    if found.queue_timed_out_at is not None or found.spot_evicted_at is not None:
        waited = "" if found.queue_timeout is None else f" within {found.queue_timeout} minutes"
        return CapacityError(
            f"daytona had no room for a sandbox from {image}{waited}, and cancelled it at "
            f"{found.queue_timed_out_at or found.spot_evicted_at}; try again later"
        )
    return start_error(found.error_reason or f"its state is {_state(found)}", image, found.id)


def _state(found: Sandbox) -> str:
    return "unknown" if found.state is None else found.state.value


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None  # another server version's format


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
