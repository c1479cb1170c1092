"""The daytona provider: creates, finds and deletes sandboxes, and connects to their agents."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import anyio
from daytona_api_client_async import (
    CreateSandboxSnapshot,
    Sandbox,
    SandboxListItem,
    SnapshotDto,
    SnapshotState,
)
from daytona_api_client_async import SandboxState as DaytonaState

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._agent.frames import Windows
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._hosted.agent import HostedInstance, ProgramStream
from sandboxkit.providers._hosted.ambiguous import (
    LAST_LOOK,
    AmbiguousError,
    as_unavailable,
    repeatable,
)
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.lifetime import keep_renewed
from sandboxkit.providers._hosted.snapshots import SNAPSHOT_NAME, SnapshotProvider
from sandboxkit.providers.daytona import _spec
from sandboxkit.providers.daytona._account import DaytonaAccount
from sandboxkit.providers.daytona._errors import NAME, ConflictError, start_error
from sandboxkit.providers.daytona._terminal import DaytonaTerminals
from sandboxkit.types import Diagnosis, PublicUrl, SandboxInfo, SandboxSpec, SandboxState

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
"""Daytona disconnects a client 256 messages behind; a terminal's messages have at most 4 KiB."""


@dataclass(eq=False)
class DaytonaInstance(HostedInstance):
    toolbox: str | None = None
    """The URL of the toolbox's proxy, once known."""


class DaytonaProvider(SnapshotProvider[DaytonaInstance]):
    """Sandboxes of the account that DAYTONA_API_KEY names.

    An image is a registry reference, or "snapshot:NAME" for a snapshot of the account.
    """

    name: ClassVar[str] = NAME
    native_egress: ClassVar[bool] = True

    def __init__(
        self, *, api_key: str | None = None, timeout: float = 60.0, build_timeout: float = 600.0
    ) -> None:
        """`api_key` defaults to $DAYTONA_API_KEY. `timeout` (s) limits the creation of a sandbox, and
        `build_timeout` (s) the time that it takes to start. Other calls have shorter limits, which
        `timeout` can only lower."""
        super().__init__(DaytonaInstance)
        self._account = DaytonaAccount(api_key, timeout)
        self._build_timeout = build_timeout
        self._creations = Creations(self.delete, provider=NAME)

    def check(self, spec: SandboxSpec) -> None:
        self._account.check()
        _spec.check(spec)

    async def _bare(self, spec: SandboxSpec) -> str:
        name = f"sandboxkit-{secrets.token_hex(16)}"
        sandbox_id = await self._creations.once(
            lambda: self._create(spec, name),
            lambda: self._named(name),
            left=f"a sandbox named {name!r}",
        )
        if self._known(sandbox_id).toolbox is None:
            async with self._creations.preparing(sandbox_id):
                await self._started(sandbox_id, spec)
        return sandbox_id

    async def _make(self, spec: SandboxSpec, first: FirstCommand | None) -> str:
        self._check_snapshot_id(spec)
        try:
            sandbox_id = await self._bare(spec)
        except ImageNotFoundError as error:
            if spec.snapshot is None:
                raise
            raise SnapshotNotFoundError(str(error)) from error
        async with self._creations.preparing(sandbox_id):
            if spec.native_rules is not None:
                _spec.check_network(spec, await self._detail(sandbox_id))
            if spec.snapshot is not None and _spec.has_size(spec):
                _spec.check_size(spec, await self._detail(sandbox_id))
            await self._begin(sandbox_id, spec, first)
            await self._instance(sandbox_id).set_timer(
                keep_renewed(lambda seconds: self._set_ttl(sandbox_id, seconds))
                if spec.lifetime is None
                else self._end(sandbox_id, spec.lifetime)
            )
        return sandbox_id

    async def _create(self, spec: SandboxSpec, name: str) -> str:
        what = f"create a sandbox from {_source(spec)}"
        body = _spec.request(spec, name, self._account.target)
        made = await self._account.call(
            self._account.sandboxes().create_sandbox(body),
            what=what,
            seconds=self._account.timeout,
        )
        if made.state is DaytonaState.STARTED and made.toolbox_proxy_url:  # from a warm pool
            self._instance(made.id).toolbox = made.toolbox_proxy_url
        return made.id

    async def _named(self, name: str) -> list[str]:
        try:
            return [(await self._detail(name)).id]
        except SandboxNotFoundError:
            return []

    async def _started(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Wait until programs can run in a sandbox. Raises the error of one that does not start."""
        found = await self._asked(sandbox_id)
        with anyio.move_on_after(self._build_timeout) as scope:
            while found.state is not DaytonaState.STARTED:
                if found.state in _STOPPED or found.state in _GONE:
                    raise _not_started(found, spec)
                await anyio.sleep(_POLL_SECONDS)
                found = await self._asked(sandbox_id)
        if scope.cancelled_caught:
            queued = found.state is DaytonaState.PENDING_BUILD
            kind = CapacityError if queued else ProviderUnavailableError
            raise kind(
                f"daytona did not start a sandbox within {self._build_timeout:g} s, after which "
                f"its state is {_state(found)}; give the provider a longer build_timeout"
            )
        self._instance(sandbox_id).toolbox = found.toolbox_proxy_url

    def _account_name(self) -> str:
        return f"{self._account.url} {self._account.headers()}"

    def _image_of(self, spec: SandboxSpec) -> str:
        return spec.image or ""

    def _may_bake(self, spec: SandboxSpec) -> bool:
        return _spec.fits_snapshot(spec) and super()._may_bake(spec)

    async def _snapshot(self, sandbox_id: str, name: str) -> str:
        await self._snapshot_there(name, None)  # one that is being removed still has the name
        return f"{_spec.SNAPSHOT}{await self._keep_files(sandbox_id, name, 0)}"

    async def _keep_files(self, sandbox_id: str, name: str, seconds: int) -> str:
        lost: SandboxError | None = None
        try:
            await self._account.call(
                self._account.sandboxes().create_sandbox_snapshot(
                    sandbox_id, CreateSandboxSnapshot(name=name)
                ),
                what="make a snapshot",
                sandbox_id=sandbox_id,
                seconds=self._account.timeout,
            )
        except AmbiguousError as error:
            lost = error  # Daytona may be making it
        with anyio.move_on_after(self._build_timeout):
            found = await self._asked(sandbox_id)
            while found.state is DaytonaState.SNAPSHOTTING:
                await anyio.sleep(_POLL_SECONDS)
                found = await self._asked(sandbox_id)
            if found.state in _FAILED or not await self._snapshot_there(name, None):
                # Daytona itself gives no reason: the sandbox is as before.
                raise lost or SandboxStartError(
                    f"daytona made no snapshot: {found.error_reason or 'it gives no reason; try again'}"
                )
            return name
        raise ProviderUnavailableError(
            f"daytona made no snapshot within {self._build_timeout:g} s; give the provider a longer "
            "build_timeout"
        )

    async def _snapshot_there(self, name: str, reference: str | None) -> str | None:
        with anyio.move_on_after(self._account.timeout):
            while (found := await self._snapshot_named(name)) is not None:
                if found.state is not SnapshotState.REMOVING:
                    return f"{_spec.SNAPSHOT}{name}"
                await anyio.sleep(_POLL_SECONDS)
        return None

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        number, pages = 1, 1
        while number <= pages:
            page = await self._account.call(
                self._account.snapshots().get_all_snapshots(
                    page=number, limit=_PAGE, name=SNAPSHOT_NAME
                ),
                what="list snapshots",
            )
            for found in page.items:
                if found.state is not SnapshotState.REMOVING:
                    yield found.name
            number, pages = number + 1, page.total_pages

    async def _remove_snapshot(self, reference: str) -> None:
        found = await self._snapshot_named(reference.removeprefix(_spec.SNAPSHOT))
        if found is not None:
            await self._account.call(
                self._account.snapshots().remove_snapshot(found.id), what="remove a snapshot"
            )

    async def _snapshot_named(self, name: str) -> SnapshotDto | None:
        try:
            return await self._account.call(
                self._account.snapshots().get_snapshot(name),
                what="look for a snapshot",
                sandbox_id=name,
            )
        except SandboxNotFoundError:
            return None

    def _windows(self) -> Windows:
        return _WINDOWS

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ProgramStream:
        try:
            return await (await self._terminals(sandbox_id)).run(argv)
        except (AuthenticationError, SandboxNotFoundError, AmbiguousError) as error:
            raise await self._why_no_way(sandbox_id, error) from error
        except SandboxStartError as error:
            if self._known(sandbox_id).machine_seen is None:
                raise
            raise SandboxTerminatedError(
                f"sandbox {sandbox_id!r} cannot be used any more: a program in it has changed how its "
                f"shells start ({error})",
                by_command=True,
            ) from error

    async def _ended_by_itself(self, sandbox_id: str) -> bool:
        return (await self._asked(sandbox_id)).state is DaytonaState.STOPPED

    async def _why_no_way(self, sandbox_id: str, error: SandboxError) -> SandboxError:
        """Return the error for a failed connection to a sandbox: whether the sandbox still runs decides.

        Daytona's proxy answers 400 or 401 for a sandbox that has ended.
        """
        try:
            found = await self._detail(sandbox_id, seconds=min(LAST_LOOK, self._account.timeout))
            if found.state in _STOPPED and self._known(sandbox_id).machine_seen is not None:
                return no_sandbox(sandbox_id)
        except SandboxNotFoundError as gone:
            return gone
        except SandboxError as failure:
            error.add_note(f"and it is unknown whether the sandbox still runs: {failure}")
        if isinstance(error, AuthenticationError):
            return error
        text = f"daytona has sandbox {sandbox_id!r}, but cannot connect to it ({error}); try again"
        return as_unavailable(error, text if isinstance(error, SandboxNotFoundError) else None)

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
        async with self._deletion(sandbox_id) as instance:
            try:
                await instance.aclose()
            finally:
                await self._delete(sandbox_id)

    async def _end(self, sandbox_id: str, lifetime: float) -> None:
        """Delete a sandbox at its exact lifetime. Daytona's minutes apply if this process has ended."""
        await anyio.sleep(lifetime)
        try:
            await self.delete(sandbox_id)
        except SandboxError:
            pass  # Daytona deletes it within a minute

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
                except ConflictError:  # its state is changing; it can be deleted afterwards
                    await anyio.sleep(_POLL_SECONDS)
                    continue
                return
        raise AmbiguousError(
            f"daytona did not delete a sandbox within {self._account.timeout:g} s; try again"
        )

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        seconds = _spec.minutes(lifetime) * 60
        await self._known(sandbox_id).set_timer(None)
        await self._set_ttl(sandbox_id, seconds)
        instance = self._instance(sandbox_id)
        instance.is_ours = True
        await instance.set_timer(self._end(sandbox_id, lifetime))

    async def diagnose(self) -> Diagnosis:
        isolation = "its own container or virtual machine on Daytona's servers"
        try:
            self._account.check()
            await self._account.call(
                self._account.sandboxes().list_sandboxes(limit=1), what="list sandboxes"
            )
        except SandboxError as error:
            return Diagnosis(False, isolation, "no access to Daytona", str(error))
        where = self._account.url
        return Diagnosis(True, isolation, f"the key works at {where}")

    async def aclose(self) -> None:
        try:
            await self._creations.settle()
        finally:
            await super().aclose()
            await self._account.aclose()

    async def _terminals(self, sandbox_id: str) -> DaytonaTerminals:
        known = self._known(sandbox_id)
        if known.toolbox is None:
            known.toolbox = (await self._detail(sandbox_id)).toolbox_proxy_url
        return DaytonaTerminals(self._account, sandbox_id, known.toolbox)

    async def _asked(self, sandbox_id: str, *, seconds: float | None = None) -> Sandbox:
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        return await self._account.call(
            self._account.sandboxes().get_sandbox(sandbox_id),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
            seconds=seconds,
        )

    async def _detail(self, sandbox_id: str, *, seconds: float | None = None) -> Sandbox:
        found = await self._asked(sandbox_id, seconds=seconds)
        if found.state in _GONE or found.labels.get(_spec.MARKER) != "1":
            raise no_sandbox(sandbox_id)
        return found

    def check_pause(self) -> None:
        raise ConfigurationError(
            "provider 'daytona' cannot pause a sandbox: Daytona pauses virtual machines only, not containers, "
            "and its stop ends all processes"
        )

    async def public_url(self, sandbox_id: str, port: int) -> PublicUrl:
        found = await self._detail(sandbox_id)
        preview = await self._account.call(
            self._account.sandboxes().get_port_preview_url(sandbox_id, port),
            what="find the address of a port",
            sandbox_id=sandbox_id,
        )
        if found.public:
            return PublicUrl(preview.url, "anyone")
        return PublicUrl(preview.url, "token", {"X-Daytona-Preview-Token": preview.token})

    async def _set_ttl(self, sandbox_id: str, seconds: int) -> None:
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        await self._account.call(
            self._account.sandboxes().set_ttl(sandbox_id, -(-seconds // 60)),
            what="renew a sandbox",
            sandbox_id=sandbox_id,
        )


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
