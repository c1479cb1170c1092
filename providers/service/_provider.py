"""The service provider: asks a service for sandboxes, and connects to their agents through it.

The service starts each sandbox on a backend of its own and remains its owner there. It passes the bytes of a link on
without reading them, so all that needs only the agent works as with other providers.
"""

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
from sandboxkit.provider import Box, FirstCommand, no_sandbox
from sandboxkit.providers import _rules
from sandboxkit.providers._agent.box import AgentBox, AgentProvider
from sandboxkit.providers._agent.frames import FAR, Windows
from sandboxkit.providers._hosted.ambiguous import public, repeatable
from sandboxkit.providers._rules import STRICT, UNICODE, Rule, never
from sandboxkit.providers.service._api import Json, ServiceApi
from sandboxkit.providers.service._errors import NAME
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SandboxState, Usage

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GRACE = 60.0
"""Seconds for which a broken link is reopened; the service keeps a sandbox without its owner's as long."""
_WITHDRAW_SECONDS = 15.0


class ServiceBox(AgentBox):
    """A sandbox that a service lends."""

    def __init__(self, provider: "ServiceProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider

    async def own(self) -> None:
        """Open the owner's link, without which the service ends the sandbox."""
        self.is_ours = True
        await self._client()

    async def info(self) -> SandboxInfo:
        return _info(
            await self._asked("GET", what="describe a sandbox", seconds=self.backend.api.silence)
        )

    async def delete(self) -> None:
        async with self.deletion():
            await self.disconnect()
            if _ID.fullmatch(self.id):
                await repeatable(
                    lambda: self._asked("DELETE", what="delete a sandbox"),
                )

    async def renew(self, lifetime: float) -> None:
        body = {"lifetime": lifetime}
        await self._asked("POST", "/renew", body, what="renew a sandbox")

    async def usage(self) -> Usage:
        used = Usage(**await self._asked("GET", "/usage", what="measure a sandbox"))
        sent, received = self.moved()  # the service knows its own link only
        return dataclasses.replace(used, sent_bytes=sent, received_bytes=received)

    async def _connect(self) -> ByteStream:
        if not _ID.fullmatch(self.id):
            raise no_sandbox(self.id)
        return await self.backend.api.link(self.id, owner=self.is_ours)

    async def _asked(
        self,
        method: str,
        path: str = "",
        body: Json = None,
        *,
        what: str,
        seconds: float | None = None,
    ) -> Json:
        if not _ID.fullmatch(self.id):
            raise no_sandbox(self.id)
        path = f"/{self.id}{path}"
        return await self.backend.api.call(
            method, path, body, what=what, sandbox_id=self.id, seconds=seconds
        )

    def _grace(self, stream: ByteStream) -> float:
        return _GRACE

    def _windows(self) -> Windows:
        return FAR

    async def _why_ended(self, reason: str) -> SandboxError:
        if reason:
            return await super()._why_ended(reason)
        end: Json = {
            "detail": f"sandbox {self.id!r} has ended: its lifetime passed, or it was stopped"
        }
        with suppress(SandboxError):
            end = await self._asked("GET", "/end", what="say why", seconds=self.backend.api.silence)
        return SandboxTerminatedError(
            str(end.get("detail", "")),
            out_of_memory=bool(end.get("out_of_memory")),
            by_command=bool(end.get("by_command")),
        )


class ServiceProvider(AgentProvider[ServiceBox]):
    """Sandboxes of a `sandboxkit serve` on another machine, which does not need a backend here.

    The service's backend decides which options it honours, and what an image is.
    """

    name: ClassVar[str] = NAME
    box_type: ClassVar[type[Box]] = ServiceBox

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
        super().__init__()
        self._start_timeout = start_timeout
        self.api = ServiceApi(url, token, timeout)

    def completed(self, error: SandboxError, sandbox_id: str | None) -> SandboxError:
        return super().completed(public(error), sandbox_id)

    def check(self, spec: SandboxSpec) -> None:
        self.api.check()
        check(spec)

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> ServiceBox:
        self.check(spec)
        key = secrets.token_hex(16)
        body = _request(spec) | {"key": key, "owned": not spec.detach}
        try:
            made = await self.api.call(
                "POST", "", body, what="start a sandbox", seconds=self._start_timeout
            )
            box = self.box(str(made["id"]))
            await box.own()
        except BaseException as error:
            await self._withdraw(key, error)
            raise
        return box

    async def _withdraw(self, key: str, error: BaseException) -> None:
        """Have the service undo a creation, whether it has begun, has ended or was never received."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(_WITHDRAW_SECONDS):
            try:
                made = await self.api.call(
                    "DELETE", f"/creations/{key}", what="undo the start of a sandbox"
                )
            except SandboxError as failure:
                error.add_note(f"and the service could not be asked to undo the start: {failure}")
            else:
                await self.box(str(made["id"])).forget()

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for found in await self.api.call("GET", "", what="list sandboxes"):
            info = _info(found)
            if tags.items() <= info.tags.items():
                yield info

    async def diagnose(self) -> Diagnosis:
        isolation = "that of the service's backend, on another machine"
        try:
            self.api.check()
            await self.api.call("GET", "", what="list sandboxes", seconds=self.api.silence)
        except SandboxError as error:
            return Diagnosis(False, isolation, "no access to a service", str(error))
        return Diagnosis(True, isolation, f"the service at {self.api.url} answers")

    async def aclose(self) -> None:
        await super().aclose()
        await self.api.aclose()


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


UNSUPPORTED = {
    "isolation": "the service decides how its sandboxes are isolated; leave the option out",
    "snapshot": "a service lends no snapshots; set the sandbox up anew, or build an image",
    "mounts": "a service lends sandboxes without datasets and volumes; build the data into an image, or upload it",
}
"""The fields that a service cannot honour, each with the reason."""
_SENT = (
    *("image", "env", "secrets", "workdir", "user", "cpus", "memory_mb", "disk_mb", "pids", "gpu"),
    *("profile", "network", "command", "detach", "lifetime", "tags"),
)
RULES = (
    *never(UNSUPPORTED),
    *UNICODE,
    *STRICT,
    Rule(
        "public_ports",
        "a service gives no public addresses; sandbox.expose(port) leads a port of this machine there",
        lambda spec: spec.public_ports != (),
    ),
    Rule(
        "reuse",
        "a service's sandboxes are not reset; leave it out",
        lambda spec: spec.reuse != "never",
    ),
    Rule(
        "lifetime",
        "a service limits the lifetime of every sandbox; give seconds",
        lambda spec: spec.lifetime is None,
    ),
)


def check(spec: SandboxSpec) -> None:
    """Raise ConfigurationError for an option that no service can honour."""
    _rules.check(spec, RULES, provider=NAME)


def _request(spec: SandboxSpec) -> dict[str, object]:
    """Return the options of a sandbox as the service's JSON."""
    default = SandboxSpec(lifetime=-1.0)  # which is always sent
    values = {name: getattr(spec, name) for name in _SENT}
    return {name: value for name, value in values.items() if value != getattr(default, name)}
