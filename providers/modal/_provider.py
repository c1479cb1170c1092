"""The modal provider: creates, finds and ends sandboxes through Modal's own SDK."""

import asyncio
import builtins
import math
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

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
)
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._hosted.agent import HostedInstance
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, repeatable
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.snapshots import SnapshotProvider
from sandboxkit.providers.modal import _spec, _tags
from sandboxkit.providers.modal._account import ModalAccount
from sandboxkit.providers.modal._stream import Endings, ModalExecStream
from sandboxkit.types import Diagnosis, PublicUrl, SandboxInfo, SandboxSpec, SandboxState

_DEFAULT_IMAGE = "python:3.11-slim"
_DEFAULT_APP = "sandboxkit"
_ID = re.compile(r"sb-[A-Za-z0-9]{8,64}")
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
_ISOLATION = "gVisor container at Modal"


@dataclass(eq=False)
class ModalInstance(HostedInstance):
    handle: modal.Sandbox | None = None
    """The SDK's handle, which holds a connection to the worker that runs the sandbox."""
    connection: int = 0
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


class ModalProvider(SnapshotProvider[ModalInstance]):
    """Sandboxes of the Modal account that MODAL_TOKEN_ID and MODAL_TOKEN_SECRET name.

    The image defaults to $SANDBOXKIT_MODAL_IMAGE, then python:3.11-slim; the sandboxes' app
    defaults to $SANDBOXKIT_MODAL_APP, then "sandboxkit".
    """

    name: ClassVar[str] = "modal"
    native_egress: ClassVar[bool] = True

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
        super().__init__(ModalInstance)
        self._app_name = app or os.environ.get("SANDBOXKIT_MODAL_APP") or _DEFAULT_APP
        self._account = ModalAccount(
            app=self._app_name, timeout=timeout, build_timeout=build_timeout
        )
        self._region = region
        self._endings = Endings()
        self._creations = Creations(self.delete, provider=self.name)

    def check(self, spec: SandboxSpec) -> None:
        _spec.check(spec)

    async def _bare(self, spec: SandboxSpec) -> str:
        reference = self._reference(spec)
        image = await self._account.image(reference)  # a build may outlive the connection
        app, client = await self._account.app(), await self._account.client()
        options = _spec.create_options(spec)
        # Unique in the app and chosen here, so that the sandbox can be found after any failure.
        name = f"sandboxkit-{secrets.token_hex(12)}"

        async def create() -> str:
            handle = await self._account.call(
                lambda: modal.Sandbox.create.aio(
                    *_KEEP,
                    app=app,
                    client=client,
                    image=image,
                    name=name,
                    region=self._region,
                    **options,
                ),
                what=f"start a sandbox from image {reference!r}",
                seconds=max(self._account.timeout - _SEARCH_SECONDS, self._account.timeout / 2),
            )
            self._remember(handle)
            return handle.object_id

        async def find() -> builtins.list[str]:
            # Another client than `create`'s, if its connection fell silent: that one may be closed.
            client = await self._account.client()
            try:
                handle = await self._account.call(
                    lambda: modal.Sandbox.from_name.aio(self._app_name, name, client=client),
                    what="find a sandbox",
                    sandbox_id=name,
                )
            except SandboxNotFoundError:
                return []
            self._remember(handle)
            return [handle.object_id]

        return await self._creations.once(
            create, find, left=f"a sandbox named {name!r} in the app {self._app_name!r}"
        )

    async def _make(self, spec: SandboxSpec, first: FirstCommand | None) -> str:
        try:
            sandbox_id = await self._bare(spec)
        except ImageNotFoundError as error:
            if spec.snapshot is None:
                raise
            self._records().forget(spec.snapshot)
            raise self._missing(spec.snapshot) from error
        async with self._creations.preparing(sandbox_id):
            try:
                await self._begin(sandbox_id, spec, first)
            except (SandboxNotFoundError, SandboxTerminatedError) as error:
                raise SandboxStartError(
                    f"sandbox {sandbox_id!r} ended before it was ready; the image needs sh"
                ) from error
        return sandbox_id

    def _account_name(self) -> str:
        return self._account.name

    def _image_of(self, spec: SandboxSpec) -> str:
        return spec.image or os.environ.get("SANDBOXKIT_MODAL_IMAGE") or _DEFAULT_IMAGE

    def _reference(self, spec: SandboxSpec) -> str:
        """Return what to start from: Modal's id of the snapshot's image, or the spec's image."""
        if spec.snapshot is None:
            return self._image_of(spec)
        self._check_snapshot_id(spec)
        image_id = _image_id(spec.snapshot)
        if not image_id.startswith("im-"):
            raise self._missing(spec.snapshot)
        return image_id

    async def _snapshot(self, sandbox_id: str, name: str, seconds: int = _BAKED_SECONDS) -> str:
        handle = await self._handle(sandbox_id)
        image = await self._account.call(
            lambda: handle.snapshot_filesystem.aio(timeout=round(_SNAPSHOT_SECONDS), ttl=seconds),
            what="make an image of a sandbox",
            sandbox_id=sandbox_id,
            seconds=_SNAPSHOT_SECONDS,
        )
        return str(image.object_id)

    async def _snapshot_there(self, name: str, reference: str | None) -> str | None:
        if reference is not None:
            try:
                await self._account.image(reference)
            except ImageNotFoundError:
                return None
        return reference

    async def _keep_files(self, sandbox_id: str, name: str, seconds: int) -> str:
        # Modal's images have no names, so the id here holds both.
        return f"{name}:{await self._snapshot(sandbox_id, name, max(seconds, 1))}"

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        # Modal does not list images: there are those of this machine's records.
        for record in self._records():
            yield record.id

    async def _remove_snapshot(self, reference: str) -> None:
        reference = _image_id(reference)
        client = await self._account.client()
        try:
            await self._account.call(
                lambda: image_delete.aio(  # pyright: ignore[reportFunctionMemberAccess]
                    reference, client=client
                ),
                what="remove an image",
                sandbox_id=reference,
            )
        except SandboxNotFoundError:
            pass
        self._account.forget(reference)

    async def _run(
        self, sandbox_id: str, argv: tuple[str, ...], *, last: bool = False
    ) -> ModalExecStream:
        try:
            handle = await self._handle(sandbox_id)
            return await ModalExecStream.open(self._account, handle, argv, self._endings)
        except (SandboxNotFoundError, SandboxTerminatedError):
            await self._known(sandbox_id).let_go()
            raise no_sandbox(sandbox_id) from None
        except AmbiguousError as error:
            await self._known(sandbox_id).let_go()  # the next call connects anew
            # A concurrent call that failed had closed the handle: the SDK sent nothing for this one.
            if isinstance(error.__cause__, modal.exception.ClientClosed) and not last:
                return await self._run(sandbox_id, argv, last=True)
            raise ProviderUnavailableError(str(error)) from error

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        app, client = await self._account.app(), await self._account.client()
        wanted = _tags.encode(tags)

        async def found() -> builtins.list[modal.Sandbox]:
            listing = modal.Sandbox.list.aio(app_id=app.app_id, tags=wanted, client=client)
            return [handle async for handle in listing]

        handles = await self._account.call(found, what="list sandboxes")
        infos: dict[int, SandboxInfo] = {}
        errors: builtins.list[SandboxError] = []
        limiter = anyio.CapacityLimiter(_LOOKUPS)

        async def describe(index: int) -> None:
            async with limiter:
                try:
                    infos[index] = await self._describe(handles[index])
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

    async def get(self, sandbox_id: str) -> SandboxInfo:
        handle = await self._find(sandbox_id)
        return await self._describe(handle)

    async def delete(self, sandbox_id: str) -> None:
        with anyio.CancelScope(shield=True):
            async with self._deletion(sandbox_id):
                try:
                    await repeatable(lambda: self._end(sandbox_id))
                except SandboxNotFoundError:
                    pass

    async def _end(self, sandbox_id: str) -> None:
        known = self._known(sandbox_id)
        if known.connection != self._account.connection:
            await known.let_go()
        handle = await self._handle(sandbox_id)
        try:
            await self._account.call(
                lambda: handle.terminate.aio(wait=True),
                what="end a sandbox",
                sandbox_id=sandbox_id,
                seconds=min(_END_SECONDS, self._account.timeout),
            )
        except AmbiguousError:
            await known.let_go()  # the next attempt connects anew
            raise

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        raise ConfigurationError(
            f"modal cannot honour lifetime={lifetime!r}: Modal cannot renew a lifetime; choose it when you "
            "create the sandbox"
        )

    async def diagnose(self) -> Diagnosis:
        try:
            client = await self._account.client()
            await self._account.call(client.hello.aio, what="answer", seconds=10)
        except SandboxError as error:
            return Diagnosis(False, _ISOLATION, "no access", str(error))
        detail = f"modal {modal.__version__}, app {self._app_name!r}"
        return Diagnosis(True, _ISOLATION, detail)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._creations.settle()
            finally:
                # Before the connections to the workers close: ending the programs needs them.
                await asyncio.gather(*(each.disconnect() for each in self._instances.values()))
                await self._endings.settle()
                await super().aclose()
                await self._account.aclose()

    async def public_url(self, sandbox_id: str, port: int) -> PublicUrl:
        handle = await self._handle(sandbox_id)
        tunnels = await self._account.call(
            lambda: handle.tunnels.aio(timeout=math.ceil(self._account.timeout)),
            what="find the address of a port",
            sandbox_id=sandbox_id,
        )
        if port not in tunnels:
            raise ConfigurationError(
                f"port {port} is not public: make the sandbox with public_ports=[{port}]"
            )
        return PublicUrl(tunnels[port].url, "anyone")

    async def _handle(self, sandbox_id: str) -> modal.Sandbox:
        """Return the SDK's handle of a sandbox, and cache it."""
        handle = self._known(sandbox_id).handle
        return handle or self._remember(await self._find(sandbox_id))

    def _remember(self, handle: modal.Sandbox) -> modal.Sandbox:
        instance = self._instance(handle.object_id)
        if instance.handle is None:  # a concurrent call may have stored one
            instance.handle, instance.connection = handle, self._account.connection
        return instance.handle

    async def _ended_by_itself(self, sandbox_id: str) -> bool:
        handle = await self._look_up(sandbox_id)
        if handle.returncode not in _UNCLEAR:
            return handle.returncode is not None
        try:  # waiting tells them apart, and returns at once, because the sandbox has ended
            await self._account.call(
                handle.wait.aio, what="ask how a sandbox ended", sandbox_id=sandbox_id
            )
        except SandboxTerminatedError:
            return False
        return True

    async def _find(self, sandbox_id: str) -> modal.Sandbox:
        """Return the running sandbox with this id. Raises SandboxNotFoundError."""
        handle = await self._look_up(sandbox_id)
        if handle.returncode is not None:
            raise no_sandbox(sandbox_id)
        return handle

    async def _look_up(self, sandbox_id: str) -> modal.Sandbox:
        """Return the sandbox with this id, running or not. Raises SandboxNotFoundError."""
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        client = await self._account.client()
        return await self._account.call(
            lambda: modal.Sandbox.from_id.aio(sandbox_id, client=client),
            what="find a sandbox",
            sandbox_id=sandbox_id,
        )

    async def _describe(self, handle: modal.Sandbox) -> SandboxInfo:
        stored = await self._account.call(
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


def _image_id(reference: str) -> str:
    """Return Modal's id of the image that is a snapshot's or a baked one."""
    return reference.rpartition(":")[2]


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        return None  # somebody has edited the tag
