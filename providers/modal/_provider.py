"""The modal provider: creates, finds and ends sandboxes through Modal's own SDK."""

import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import ClassVar, TypeVar

import anyio
import modal
from modal.experimental import image_delete

from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import Box, FirstCommand, no_sandbox
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, repeatable
from sandboxkit.providers._hosted.vendor import VendorBox, VendorProvider
from sandboxkit.providers.modal import _spec, _tags
from sandboxkit.providers.modal._account import ModalAccount
from sandboxkit.providers.modal._stream import ModalExecStream
from sandboxkit.types import PublicUrl, SandboxInfo, SandboxSpec, SandboxState

_DEFAULT_IMAGE = "python:3.11-slim"
_DEFAULT_APP = "sandboxkit"
_T = TypeVar("_T")
_LOOKUPS = 16
"""How many sandboxes `list` describes concurrently."""
_END_SECONDS = 15.0
"""Time limit in seconds for ending a sandbox."""
_SNAPSHOT_SECONDS = 300.0
"""Time limit in seconds for making an image of a sandbox."""
_BAKED_SECONDS = 30 * 24 * 3600
"""Seconds until Modal removes a baked image. It has no name by which a leftover could be found."""
_SEARCH_SECONDS = 2.0
"""Seconds of a creation's time limit that are reserved for finding a sandbox it may have made."""
# The sandbox's first process; the sandbox ends with it. It is a shell, because it must reap orphans.
# Commands run as root like it, and not every kernel protects a first process from signals, so it ignores
# all signals that it can; the C library reserves 32 and 33.
_KEEP = (
    "sh",
    "-c",
    "n=0; while [ $n -lt 64 ]; do n=$((n+1)); "
    "case $n in 9|17|19) ;; *) command trap '' $n 2>/dev/null ;; esac; done; "
    "while :; do sleep 3600 & wait $!; done",
)
_UNCLEAR = (124, 137)
"""The SDK's exit statuses for a sandbox that timed out (124) or was terminated by a call (137). The first
process may have exited with them, too: a tracer in the sandbox can have it killed, which is 137."""


class ModalBox(VendorBox["ModalProvider"]):
    """One sandbox of Modal."""

    ids = re.compile(r"sb-[A-Za-z0-9]{8,64}")

    def __init__(self, provider: "ModalProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.handle: modal.Sandbox | None = None
        """The SDK's handle, which holds a connection to the worker that runs the sandbox."""
        self.connection = 0
        """The number of the account's connection over which the handle was made."""

    async def let_go(self) -> None:
        """Close the connection to the worker."""
        handle, self.handle = self.handle, None
        if handle is not None:
            with anyio.CancelScope(shield=True):
                await handle.detach.aio()  # type: ignore[no-untyped-call]  # the stub lacks the types

    async def aclose(self) -> None:
        await super().aclose()
        await self.let_go()

    async def _request(
        self, function: Callable[[], Awaitable[_T]], what: str, *, seconds: float | None = None
    ) -> _T:
        """Call Modal about this sandbox."""
        return await self.backend.account.call(
            function, what=what, sandbox_id=self.id, seconds=seconds
        )

    async def prepare(self, spec: SandboxSpec, first: FirstCommand | None) -> None:
        try:
            await super().prepare(spec, first)
        except (SandboxNotFoundError, SandboxTerminatedError) as error:
            raise SandboxStartError(
                f"sandbox {self.id!r} ended before it was ready; the image needs sh"
            ) from error

    async def _keep_files(self, name: str, seconds: int | None) -> str:
        handle, limit = await self._handle(), round(_SNAPSHOT_SECONDS)
        ttl = _BAKED_SECONDS if seconds is None else max(seconds, 1)
        image = await self._request(
            lambda: handle.snapshot_filesystem.aio(timeout=limit, ttl=ttl),
            "make an image of a sandbox",
            seconds=_SNAPSHOT_SECONDS,
        )
        # Modal's images have no names, so a snapshot's id here holds both.
        return str(image.object_id) if seconds is None else f"{name}:{image.object_id}"

    async def _run(self, argv: tuple[str, ...], *, last: bool = False) -> ModalExecStream:
        try:
            handle = await self._handle()
            return await ModalExecStream.open(self.backend.account, handle, argv, self.endings)
        except (SandboxNotFoundError, SandboxTerminatedError):
            await self.let_go()
            raise no_sandbox(self.id) from None
        except AmbiguousError as error:
            await self.let_go()  # the next call connects anew
            # A concurrent call that failed had closed the handle: the SDK sent nothing for this one.
            if isinstance(error.__cause__, modal.exception.ClientClosed) and not last:
                return await self._run(argv, last=True)
            raise ProviderUnavailableError(str(error)) from error

    async def info(self) -> SandboxInfo:
        return await self.backend.describe(await self._find())

    async def delete(self) -> None:
        with anyio.CancelScope(shield=True):
            await super().delete()

    async def _end(self) -> None:
        await repeatable(self._terminate)

    async def _terminate(self) -> None:
        account = self.backend.account
        if self.connection != account.connection:
            await self.let_go()
        handle = await self._handle()
        try:
            await self._request(
                lambda: handle.terminate.aio(wait=True),
                "end a sandbox",
                seconds=min(_END_SECONDS, account.timeout),
            )
        except AmbiguousError:
            await self.let_go()  # the next attempt connects anew
            raise

    async def renew(self, lifetime: float) -> None:
        raise ConfigurationError(
            f"modal cannot honour lifetime={lifetime!r}: Modal cannot renew a lifetime; choose it when you "
            "create the sandbox"
        )

    async def _set_lifetime(self, seconds: int) -> None:
        raise NotImplementedError("Modal cannot renew a lifetime")

    async def public_url(self, port: int) -> PublicUrl:
        handle = await self._handle()
        tunnels = await self._request(
            lambda: handle.tunnels.aio(timeout=math.ceil(self.backend.account.timeout)),
            "find the address of a port",
        )
        if port not in tunnels:
            raise ConfigurationError(
                f"port {port} is not public: make the sandbox with public_ports=[{port}]"
            )
        return PublicUrl(tunnels[port].url, "anyone")

    async def _handle(self) -> modal.Sandbox:
        """Return the SDK's handle of the sandbox, and cache it."""
        return self.handle or self.remember(await self._find())

    def remember(self, handle: modal.Sandbox) -> modal.Sandbox:
        """Cache a handle until the sandbox is forgotten, and return the one to use."""
        if self.handle is None:  # a concurrent call may have stored one
            self.backend.keep(self)
            self.handle, self.connection = handle, self.backend.account.connection
        return self.handle

    async def _ended_by_itself(self) -> bool:
        handle = await self._look_up()
        if handle.returncode not in _UNCLEAR:
            return handle.returncode is not None
        try:  # waiting tells them apart, and returns at once, because the sandbox has ended
            await self._request(handle.wait.aio, "ask how a sandbox ended")
        except SandboxTerminatedError:
            return False
        return True

    async def _find(self) -> modal.Sandbox:
        """Return the handle of the sandbox if it runs. Raises SandboxNotFoundError."""
        handle = await self._look_up()
        if handle.returncode is not None:
            raise no_sandbox(self.id)
        return handle

    async def _look_up(self) -> modal.Sandbox:
        """Return the handle of the sandbox, running or not. Raises SandboxNotFoundError."""
        sandbox_id = self._existing_id()
        client = await self.backend.account.client()
        return await self._request(
            lambda: modal.Sandbox.from_id.aio(sandbox_id, client=client), "find a sandbox"
        )


class ModalProvider(VendorProvider[ModalBox, ModalAccount]):
    """Sandboxes of the Modal account that MODAL_TOKEN_ID and MODAL_TOKEN_SECRET name.

    The image defaults to $SANDBOXKIT_MODAL_IMAGE, then python:3.11-slim; the sandboxes' app
    defaults to $SANDBOXKIT_MODAL_APP, then "sandboxkit".
    """

    name: ClassVar[str] = "modal"
    box_type: ClassVar[type[Box]] = ModalBox
    native_egress: ClassVar[bool] = True
    rules: ClassVar = _spec.RULES
    longest: ClassVar[int] = _spec.LONGEST
    isolation: ClassVar[str] = "gVisor container at Modal"

    def __init__(
        self,
        *,
        app: str | None = None,
        region: str | None = None,
        timeout: float = 60.0,
        build_timeout: float = 1800.0,
    ) -> None:
        """`region` is a region of Modal's, such as "us-east". `timeout` (s) limits the creation of a
        sandbox, and `build_timeout` (s) the build of an image at its first use. Other calls have
        shorter limits, which `timeout` can only lower."""
        self._app_name = app or os.environ.get("SANDBOXKIT_MODAL_APP") or _DEFAULT_APP
        super().__init__(
            ModalAccount(app=self._app_name, timeout=timeout, build_timeout=build_timeout)
        )
        self._region = region

    def check_options(self, spec: SandboxSpec) -> None:
        super().check_options(spec)
        _tags.encode(spec.tags)

    async def _bare(self, spec: SandboxSpec) -> ModalBox:
        await self.account.image(self._reference(spec))  # which takes longer than a creation may
        return await super()._bare(spec)

    async def _create(self, spec: SandboxSpec, key: str) -> ModalBox:
        account, reference = self.account, self._reference(spec)
        options = _spec.create_options(spec, self.tags_of(spec), self.seconds(spec.lifetime))

        async def create() -> modal.Sandbox:
            return await modal.Sandbox.create.aio(
                *_KEEP,
                app=await account.app(),
                client=await account.client(),
                image=await account.image(reference),
                name=key,  # unique in the app
                region=self._region,
                **options,
            )

        handle = await account.call(
            create,
            what=f"start a sandbox from image {reference!r}",
            seconds=max(account.timeout - _SEARCH_SECONDS, account.timeout / 2),
        )
        return self._found(handle)

    async def _created(self, key: str) -> Sequence[ModalBox]:
        # Another client than `_create`'s, if its connection fell silent: that one may be closed.
        client = await self.account.client()
        with suppress(SandboxNotFoundError):
            handle = await self.account.call(
                lambda: modal.Sandbox.from_name.aio(self._app_name, key, client=client),
                what="find a sandbox",
                sandbox_id=key,
            )
            return [self._found(handle)]
        return []

    def _found(self, handle: modal.Sandbox) -> ModalBox:
        box = self.box(handle.object_id)
        box.remember(handle)
        return box

    async def _make(self, spec: SandboxSpec, first: FirstCommand | None) -> ModalBox:
        try:
            return await super()._make(spec, first)
        except SnapshotNotFoundError as error:
            if isinstance(error.__cause__, ImageNotFoundError):
                self.records().forget(spec.snapshot or "")
            raise

    def _image_of(self, spec: SandboxSpec) -> str:
        return spec.image or os.environ.get("SANDBOXKIT_MODAL_IMAGE") or _DEFAULT_IMAGE

    def _reference(self, spec: SandboxSpec) -> str:
        """Return what to start from: Modal's id of the snapshot's image, or the spec's image."""
        if spec.snapshot is None:
            return self._image_of(spec)
        image_id = _image_id(spec.snapshot)
        if not image_id.startswith("im-"):
            raise self._missing(spec.snapshot)
        return image_id

    async def snapshot_there(self, name: str, reference: str | None) -> str | None:
        if reference is not None:
            try:
                await self.account.image(reference)
            except ImageNotFoundError:
                return None
        return reference

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        # Modal does not list images: there are those of this machine's records.
        for record in self.records():
            yield record.id

    async def remove_snapshot(self, reference: str) -> None:
        reference = _image_id(reference)
        client = await self.account.client()
        with suppress(SandboxNotFoundError):
            await self.account.call(
                lambda: image_delete.aio(  # pyright: ignore[reportFunctionMemberAccess]
                    reference, client=client
                ),
                what="remove an image",
                sandbox_id=reference,
            )
        self.account.forget(reference)

    async def _listed(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        app, client = await self.account.app(), await self.account.client()
        wanted = _tags.encode(tags)

        async def found() -> list[modal.Sandbox]:
            listing = modal.Sandbox.list.aio(app_id=app.app_id, tags=wanted, client=client)
            return [handle async for handle in listing]

        handles = await self.account.call(found, what="list sandboxes")
        infos: dict[int, SandboxInfo] = {}
        errors: list[SandboxError] = []
        limiter = anyio.CapacityLimiter(_LOOKUPS)

        async def describe(index: int) -> None:
            async with limiter:
                try:
                    infos[index] = await self.describe(handles[index])
                except SandboxNotFoundError:
                    pass  # it has ended since the listing
                except SandboxError as error:
                    errors.append(error)  # raised below, not wrapped in an exception group

        async with anyio.create_task_group() as group:
            for index in range(len(handles)):
                group.start_soon(describe, index)
        if errors:
            raise errors[0]
        for _, info in sorted(infos.items()):
            yield info

    async def describe(self, handle: modal.Sandbox) -> SandboxInfo:
        """Describe a running sandbox."""
        stored = await self.account.call(
            handle.get_tags.aio, what="read a sandbox's tags", sandbox_id=handle.object_id
        )
        tags = _tags.decode(stored)
        created = tags.pop(_spec.CREATED, None)
        expires = tags.get("sandboxkit.expires")
        return SandboxInfo(
            id=handle.object_id,
            provider=self.name,
            state=SandboxState.RUNNING,
            tags=tags,
            created_at=_time(created),
            expires_at=_time(expires),
        )

    async def _reached(self) -> tuple[str, str]:
        client = await self.account.client()
        await self.account.call(client.hello.aio, what="answer", seconds=10)
        return self.isolation, f"modal {modal.__version__}, app {self._app_name!r}"

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await super().aclose()


def _image_id(reference: str) -> str:
    """Return Modal's id of the image that is a snapshot's or a baked one."""
    return reference.rpartition(":")[2]


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        return None  # somebody has edited the tag
