"""The modal provider: sandboxes made, found and ended through Modal's own SDK."""

import builtins
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import ClassVar

import anyio
import modal

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers._hosted.agent import HostedAgentProvider
from sandboxkit.providers._hosted.boundary import public
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.unclear import UnclearError, repeatable
from sandboxkit.providers.modal import _spec, _tags
from sandboxkit.providers.modal._account import Account
from sandboxkit.providers.modal._stream import Endings, ExecStream
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SandboxState

__all__ = ["ModalProvider"]

_DEFAULT_IMAGE = "python:3.11-slim"
_DEFAULT_APP = "sandboxkit"
_ID = re.compile(r"sb-[A-Za-z0-9]{8,64}")
_LOOKUPS = 16
"""Sandboxes that a listing asks about at a time."""
_END_SECONDS = 15.0
"""In which a sandbox has ended."""
_SEARCH_SECONDS = 2.0
"""Kept back from a creation's time, for finding out what became of it."""
# The sandbox lives as long as this; a shell, because the first process has to reap orphans.
_KEEP = ("sh", "-c", "while :; do sleep 3600 & wait $!; done")
_ISOLATION = "gVisor container at Modal"


@public
class ModalProvider(HostedAgentProvider):
    """Sandboxes of the Modal account that MODAL_TOKEN_ID and MODAL_TOKEN_SECRET name.

    The image defaults to SANDBOXKIT_MODAL_IMAGE, then python:3.11-slim; the app they belong to
    is SANDBOXKIT_MODAL_APP, or "sandboxkit".
    """

    name: ClassVar[str] = "modal"
    _root_is_ours: ClassVar[bool] = True

    def __init__(
        self,
        *,
        app: str | None = None,
        region: str | None = None,
        timeout: float = 60.0,
        build_timeout: float = 1800.0,
    ) -> None:
        """`region` is one of Modal's, such as "us-east". In seconds, `timeout` bounds what Modal may
        take to make a sandbox, `build_timeout` the building of an image on its first use; other
        answers have shorter bounds, unless the timeout is shorter still."""
        super().__init__()
        self._app_name = app or os.environ.get("SANDBOXKIT_MODAL_APP") or _DEFAULT_APP
        self._account = Account(app=self._app_name, timeout=timeout, build_timeout=build_timeout)
        self._region = region
        # Each holds a connection to the worker that its sandbox runs on.
        self._handles: dict[str, modal.Sandbox] = {}
        self._endings = Endings()
        self._deleting: set[str] = set()
        self._creations = Creations(self.delete, provider=self.name)

    def check(self, spec: SandboxSpec) -> None:
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        reference = spec.image or os.environ.get("SANDBOXKIT_MODAL_IMAGE") or _DEFAULT_IMAGE
        app, client = await self._account.app(), await self._account.client()
        image = await self._account.image(reference)
        options = _spec.create_options(spec)
        # Unique in the app and chosen here: whatever happens, the sandbox can be found by it.
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

        sandbox_id = await self._creations.once(
            create, find, left=f"a sandbox named {name!r} in the app {self._app_name!r}"
        )
        async with self._creations.preparing(sandbox_id):
            try:
                await self._begin(sandbox_id, spec)
            except (SandboxNotFoundError, SandboxTerminatedError) as error:
                raise SandboxStartError(
                    f"sandbox {sandbox_id!r} ended before it was ready; an image needs sh",
                    provider=self.name,
                    sandbox_id=sandbox_id,
                ) from error
        return sandbox_id

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> ExecStream:
        try:
            handle = await self._handle(sandbox_id)
            return await ExecStream.open(self._account, handle, argv, self._endings)
        except (SandboxNotFoundError, SandboxTerminatedError):
            await self._let_go(sandbox_id)
            raise self._not_found(sandbox_id) from None
        except UnclearError as error:
            await self._let_go(sandbox_id)  # the next one looks for another way to it
            raise ProviderUnavailableError(
                str(error), provider=self.name, sandbox_id=sandbox_id
            ) from error

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
                    pass  # it has ended since
                except SandboxError as error:
                    errors.append(error)  # raised below, out of the task group's wrapping

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
        self._deleting.add(sandbox_id)
        try:
            with anyio.CancelScope(shield=True):
                try:
                    await repeatable(lambda: self._end(sandbox_id))
                except SandboxNotFoundError:
                    pass
                await self._forget(sandbox_id)
                await self._let_go(sandbox_id)
        finally:
            self._deleting.discard(sandbox_id)

    def _is_deleting(self, sandbox_id: str) -> bool:
        return sandbox_id in self._deleting

    async def _end(self, sandbox_id: str) -> None:
        handle = await self._handle(sandbox_id)
        await self._account.call(
            lambda: handle.terminate.aio(wait=True),
            what="end a sandbox",
            sandbox_id=sandbox_id,
            seconds=min(_END_SECONDS, self._account.timeout),
        )

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        raise ConfigurationError(
            f"modal cannot honour lifetime={lifetime!r}: it cannot renew one; choose it when the "
            "sandbox is made",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def diagnose(self) -> Diagnosis:
        try:
            client = await self._account.client()
            await self._account.call(client.hello.aio, what="answer", seconds=10)
        except SandboxError as error:
            return Diagnosis(
                available=False, isolation=_ISOLATION, detail="no access", remedy=str(error)
            )
        detail = f"modal {modal.__version__}, app {self._app_name!r}"
        return Diagnosis(available=True, isolation=_ISOLATION, detail=detail)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._creations.settle()
            finally:
                await super().aclose()
                await self._endings.settle()
                for sandbox_id in list(self._handles):
                    await self._let_go(sandbox_id)
                await self._account.aclose()

    async def _handle(self, sandbox_id: str) -> modal.Sandbox:
        """The SDK's handle of a sandbox, which is kept."""
        handle = self._handles.get(sandbox_id)
        return handle or self._remember(await self._find(sandbox_id))

    def _remember(self, handle: modal.Sandbox) -> modal.Sandbox:
        # Somebody else may have been faster.
        return self._handles.setdefault(handle.object_id, handle)

    async def _let_go(self, sandbox_id: str) -> None:
        """Close the connection to the worker of a sandbox."""
        handle = self._handles.pop(sandbox_id, None)
        if handle is not None:
            with anyio.CancelScope(shield=True):
                await handle.detach.aio()  # type: ignore[no-untyped-call]  # the stub lacks the types

    async def _find(self, sandbox_id: str) -> modal.Sandbox:
        """The running sandbox of this id. Raises SandboxNotFoundError."""
        if not _ID.fullmatch(sandbox_id):
            raise self._not_found(sandbox_id)
        client = await self._account.client()
        handle = await self._account.call(
            lambda: modal.Sandbox.from_id.aio(sandbox_id, client=client),
            what="find a sandbox",
            sandbox_id=sandbox_id,
        )
        if handle.returncode is not None:
            raise self._not_found(sandbox_id)
        return handle

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

    def _not_found(self, sandbox_id: str) -> SandboxNotFoundError:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider=self.name,
            sandbox_id=sandbox_id,
        )


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        return None  # somebody edited it
