"""The service provider: asks a service for sandboxes, and connects to their agents through it."""

import dataclasses
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import ClassVar

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    SandboxError,
    SandboxTerminatedError,
)
from sandboxkit.providers._agent.frames import FAR, Windows
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._hosted.ambiguous import SILENCE, public, repeatable
from sandboxkit.providers.service import _spec
from sandboxkit.providers.service._api import Json, ServiceApi
from sandboxkit.providers.service._errors import NAME
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SandboxState, Usage

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GRACE = 60.0
"""Seconds for which a broken link is reopened; the service keeps a sandbox without its owner's as long."""
_WITHDRAW_SECONDS = 15.0


class ServiceProvider(AgentProvider[Instance]):
    """Sandboxes of a `sandboxkit serve` on another machine, which does not need a backend here.

    The service's backend decides which options it honours, and what an image is.
    """

    name: ClassVar[str] = NAME

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        start_timeout: float = 600.0,
    ) -> None:
        """`url` defaults to $SANDBOXKIT_SERVICE_URL and `token` to $SANDBOXKIT_SERVICE_TOKEN. `timeout` (s)
        limits each answer of the service, and `start_timeout` (s) the start of a sandbox."""
        super().__init__(Instance)
        self._start_timeout = start_timeout
        self._silence = min(SILENCE, timeout)
        self._api = ServiceApi(url, token, timeout)

    def _completed(self, error: SandboxError, sandbox_id: str | None) -> SandboxError:
        return super()._completed(public(error), sandbox_id)

    def check(self, spec: SandboxSpec) -> None:
        self._api.check()
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        key = secrets.token_hex(16)
        body = _spec.request(spec) | {"key": key, "owned": not spec.detach}
        try:
            made = await self._api.call(
                "POST", "", body, what="start a sandbox", seconds=self._start_timeout
            )
            sandbox_id = str(made["id"])
            self._instance(sandbox_id).is_ours = True
            await self._client(sandbox_id)  # the service ends a sandbox whose owner has no link
        except BaseException as error:
            await self._withdraw(key, error)
            raise
        return sandbox_id

    async def _withdraw(self, key: str, error: BaseException) -> None:
        """Have the service undo a creation, whether it has begun, has ended or was never received."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(_WITHDRAW_SECONDS):
            try:
                made = await self._api.call(
                    "DELETE", f"/creations/{key}", what="undo the start of a sandbox"
                )
            except SandboxError as failure:
                error.add_note(f"and the service could not be asked to undo the start: {failure}")
            else:
                await self._forget(str(made["id"]))

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for found in await self._api.call("GET", "", what="list sandboxes"):
            info = _info(found)
            if tags.items() <= info.tags.items():
                yield info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _info(
            await self._asked("GET", sandbox_id, what="describe a sandbox", seconds=self._silence)
        )

    async def delete(self, sandbox_id: str) -> None:
        async with self._deletion(sandbox_id) as instance:
            await instance.disconnect()
            if _ID.fullmatch(sandbox_id):
                await repeatable(
                    lambda: self._asked("DELETE", sandbox_id, what="delete a sandbox"),
                )

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        body = {"lifetime": lifetime}
        await self._asked("POST", sandbox_id, "/renew", body, what="renew a sandbox")

    async def usage(self, sandbox_id: str) -> Usage:
        used = Usage(**await self._asked("GET", sandbox_id, "/usage", what="measure a sandbox"))
        sent, received = self._known(sandbox_id).moved()  # the service knows its own link only
        return dataclasses.replace(used, sent_bytes=sent, received_bytes=received)

    async def _connect(self, sandbox_id: str) -> ByteStream:
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        return await self._api.link(sandbox_id, owner=self._known(sandbox_id).is_ours)

    async def _asked(
        self,
        method: str,
        sandbox_id: str,
        path: str = "",
        body: Json = None,
        *,
        what: str,
        seconds: float | None = None,
    ) -> Json:
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        path = f"/{sandbox_id}{path}"
        return await self._api.call(
            method, path, body, what=what, sandbox_id=sandbox_id, seconds=seconds
        )

    def _grace(self, stream: ByteStream) -> float:
        return _GRACE

    def _windows(self) -> Windows:
        return FAR

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if reason:
            return await super()._why_ended(sandbox_id, reason)
        end: Json = {
            "detail": f"sandbox {sandbox_id!r} has ended: its lifetime passed, or it was stopped"
        }
        with suppress(SandboxError):
            end = await self._asked(
                "GET", sandbox_id, "/end", what="say why", seconds=self._silence
            )
        return SandboxTerminatedError(
            str(end.get("detail", "")),
            out_of_memory=bool(end.get("out_of_memory")),
            by_command=bool(end.get("by_command")),
        )

    async def diagnose(self) -> Diagnosis:
        isolation = "that of the service's backend, on another machine"
        try:
            self._api.check()
            await self._api.call("GET", "", what="list sandboxes", seconds=self._silence)
        except SandboxError as error:
            return Diagnosis(False, isolation, "no access to a service", str(error))
        return Diagnosis(True, isolation, f"the service at {self._api.url} answers")

    async def aclose(self) -> None:
        await super().aclose()
        await self._api.aclose()


def _info(found: Json) -> SandboxInfo:
    return SandboxInfo(
        id=found["id"],
        provider=NAME,
        state=SandboxState(found["state"]),
        tags=found["tags"],
        image=found["image"],
        created_at=_time(found["created_at"]),
        expires_at=_time(found["expires_at"]),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
