"""The e2b provider: sandboxes made, found and removed; commands and files inside them."""

import re
import secrets
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, cast

import anyio
from e2b.api.client.api.sandboxes import (
    delete_sandboxes_sandbox_id,
    get_sandboxes_sandbox_id,
    get_v2_sandboxes,
    post_sandboxes_sandbox_id_timeout,
    post_v2_sandboxes,
)
from e2b.api.client.models import NewSandboxV2, SandboxTimeoutRequest
from e2b.api.client.types import UNSET

from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Output, Provider
from sandboxkit.providers._hosted import main
from sandboxkit.providers._hosted.creation import create_once
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError
from sandboxkit.providers._hosted.lifetime import Heartbeats, whole_seconds
from sandboxkit.providers.e2b import _exec, _spec
from sandboxkit.providers.e2b._account import NAME, Account
from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.types import Command, Diagnosis, SandboxInfo, SandboxSpec, SandboxState

__all__ = ["E2BProvider"]

_DEFAULT_TEMPLATE = "base"
_DEFAULT_WORKDIR = "/workspace"
_ID = re.compile(r"[a-z0-9]{1,64}")
_PAGE = 100
_PREPARE = '[ -d "$1" ] || { mkdir -p -- "$1" && chmod 1777 -- "$1"; }'


class E2BProvider(Provider):
    """Sandboxes of the account that E2B_API_KEY names; an image is a template's name or id."""

    name: ClassVar[str] = NAME

    def __init__(self, *, api_key: str | None = None, timeout: float = 60.0) -> None:
        """`api_key` defaults to E2B_API_KEY; `timeout` bounds each answer of E2B, in seconds."""
        self._account = Account(api_key, timeout)
        self._machines: dict[str, Machine] = {}
        self._heartbeats = Heartbeats(self._set_timeout)

    def check(self, spec: SandboxSpec) -> None:
        self._account.check()
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        key = secrets.token_hex(16)
        sandbox_id = await create_once(
            lambda: self._create(spec, key), lambda: self._with_key(key), self.delete
        )
        try:
            machine = await self._machine(sandbox_id)
            workdir = spec.workdir or _DEFAULT_WORKDIR
            argv = ("sh", "-c", _PREPARE, "sh", workdir)
            await machine.run_script(argv, "prepare", f"make the directory {workdir!r}")
            if spec.command is not None:
                await main.start(self, sandbox_id, spec.command)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                try:
                    await self.delete(sandbox_id)
                except SandboxError as failure:
                    error.add_note(f"and {sandbox_id} could not be removed: {failure}")
            raise
        if spec.lifetime is None:
            self._heartbeats.start(sandbox_id)
        return sandbox_id

    async def _create(self, spec: SandboxSpec, key: str) -> str:
        template = spec.image or _DEFAULT_TEMPLATE
        workdir = spec.workdir or _DEFAULT_WORKDIR
        body = NewSandboxV2(
            template_id=template,
            timeout=whole_seconds(spec.lifetime, provider=NAME, maximum=_spec.MAX_LIFETIME),
            allow_internet_access=spec.network == "internet",
            metadata=_spec.metadata(spec, key),
            env_vars={"SANDBOXKIT_WORKDIR": workdir, **spec.env, **spec.secrets},
        )
        what = f"create a sandbox from template {template!r}"
        try:
            answer = await self._account.call(
                post_v2_sandboxes.asyncio_detailed, what=what, body=body, idempotency_key=key
            )
        except ConfigurationError as error:
            if "template" in str(error).removeprefix(f"e2b could not {what}").lower():
                raise ImageNotFoundError(
                    f"no template {template!r} for this key: {error}; see `e2b template list`",
                    provider=NAME,
                ) from error
            raise
        made: Any = answer.parsed  # the generated classes are untyped
        self._machines[made.sandbox_id] = Machine(
            self._account,
            made.sandbox_id,
            domain=made.domain,
            token=made.envd_access_token,
            user=spec.user,
        )
        return cast(str, made.sandbox_id)

    async def _with_key(self, key: str) -> list[str]:
        return [info.id async for info in self.list({_spec.KEY_TAG: key})]

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> int:
        known = sandbox_id in self._machines
        machine = await self._machine(sandbox_id)
        try:
            return await _exec.run(machine, command, output)
        except SandboxNotFoundError as error:
            self._machines.pop(sandbox_id, None)
            if known:
                raise self._terminated(sandbox_id) from error
            raise
        except OutcomeUnknownError as error:
            # The connection broke: because the sandbox ended, or for another reason?
            try:
                await self.get(sandbox_id)
            except SandboxNotFoundError:
                self._machines.pop(sandbox_id, None)
                raise self._terminated(sandbox_id) from error
            except SandboxError as failure:
                error.add_note(f"and whether the sandbox still runs is not known: {failure}")
            raise

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        wanted = {**tags, _spec.MARKER: "1"}
        # Quoted twice, as E2B's own SDK does and E2B expects.
        quoted = {urllib.parse.quote(k): urllib.parse.quote(v) for k, v in wanted.items()}
        token = ""
        while True:
            answer = await self._account.call(
                get_v2_sandboxes.asyncio_detailed,
                what="list sandboxes",
                metadata=urllib.parse.urlencode(quoted),
                limit=_PAGE,
                next_token=token or UNSET,
            )
            for found in answer.parsed or ():
                info = _info(found)
                if wanted.items() <= info.tags.items():
                    yield info
            token = answer.headers.get("x-next-token", "")
            if not token:
                return

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _info(await self._detail(sandbox_id))

    async def delete(self, sandbox_id: str) -> None:
        await self._heartbeats.stop(sandbox_id)
        machine = self._machines.pop(sandbox_id, None)
        if machine is not None:
            await machine.aclose()
        if not _ID.fullmatch(sandbox_id):
            return
        try:
            await self._account.call(
                delete_sandboxes_sandbox_id.asyncio_detailed,
                sandbox_id,
                what="stop a sandbox",
                sandbox_id=sandbox_id,
            )
        except SandboxNotFoundError:
            pass

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        seconds = whole_seconds(lifetime, provider=NAME, maximum=_spec.MAX_LIFETIME)
        await self._heartbeats.stop(sandbox_id)
        await self._set_timeout(sandbox_id, seconds)

    async def logs(self, sandbox_id: str) -> bytes:
        return await main.logs(self, sandbox_id)

    async def wait(self, sandbox_id: str) -> int:
        return await main.wait(self, sandbox_id)

    async def diagnose(self) -> Diagnosis:
        isolation = "a virtual machine of its own on E2B's servers"
        try:
            await self._account.call(
                get_v2_sandboxes.asyncio_detailed, what="list sandboxes", limit=1
            )
        except SandboxError as error:
            return Diagnosis(
                available=False, isolation=isolation, detail="no access to E2B", remedy=str(error)
            )
        where = self._account.config().api_url
        return Diagnosis(available=True, isolation=isolation, detail=f"the key works at {where}")

    async def aclose(self) -> None:
        await self._heartbeats.aclose()
        for machine in self._machines.values():
            await machine.aclose()
        self._machines.clear()
        await self._account.aclose()

    async def _machine(self, sandbox_id: str) -> Machine:
        machine = self._machines.get(sandbox_id)
        if machine is None:
            detail = await self._detail(sandbox_id)
            machine = self._machines[sandbox_id] = Machine(
                self._account,
                sandbox_id,
                domain=detail.domain,
                token=detail.envd_access_token,
                user=_tags(detail).get(_spec.USER_TAG),
            )
        return machine

    async def _detail(self, sandbox_id: str) -> Any:  # Any: the generated classes are untyped
        if not _ID.fullmatch(sandbox_id):
            raise self._not_found(sandbox_id)
        answer = await self._account.call(
            get_sandboxes_sandbox_id.asyncio_detailed,
            sandbox_id,
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        if _tags(answer.parsed).get(_spec.MARKER) != "1":
            raise self._not_found(sandbox_id)
        return answer.parsed

    async def _set_timeout(self, sandbox_id: str, seconds: int) -> None:
        if not _ID.fullmatch(sandbox_id):
            raise self._not_found(sandbox_id)
        await self._account.call(
            post_sandboxes_sandbox_id_timeout.asyncio_detailed,
            sandbox_id,
            what="renew a sandbox",
            sandbox_id=sandbox_id,
            body=SandboxTimeoutRequest(timeout=seconds),
        )

    def _not_found(self, sandbox_id: str) -> SandboxNotFoundError:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended", provider=NAME, sandbox_id=sandbox_id
        )

    def _terminated(self, sandbox_id: str) -> SandboxTerminatedError:
        return SandboxTerminatedError(
            f"sandbox {sandbox_id!r} has ended: its lifetime passed, or it was stopped",
            provider=NAME,
            sandbox_id=sandbox_id,
        )


def _tags(found: Any) -> dict[str, str]:  # Any: of several generated classes
    return dict(found.metadata or {})


def _info(found: Any) -> SandboxInfo:
    return SandboxInfo(
        id=found.sandbox_id,
        provider=NAME,
        state=SandboxState.RUNNING if found.state == "running" else SandboxState.STOPPED,
        tags=_tags(found),
        image=found.alias or found.template_id,
        created_at=found.started_at,
        expires_at=found.end_at,
    )
