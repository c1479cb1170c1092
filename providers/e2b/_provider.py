"""The e2b provider: sandboxes made, found and removed; all else is the agent's in each."""

import re
import secrets
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

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
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers._hosted.agent import HostedAgentProvider
from sandboxkit.providers._hosted.boundary import public
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.lifetime import Heartbeats, whole_seconds
from sandboxkit.providers._hosted.unclear import UnclearError, repeatable
from sandboxkit.providers.e2b import _spec
from sandboxkit.providers.e2b._account import Account
from sandboxkit.providers.e2b._answers import NAME, gone
from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.providers.e2b._run import run
from sandboxkit.providers.e2b._stream import Program
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SandboxState

__all__ = ["E2BProvider"]

_DEFAULT_TEMPLATE = "base"
_ID = re.compile(r"[a-z0-9]{1,64}")
_PAGE = 100
_USER = "user"
"""Whom E2B runs commands as that name nobody."""


@public
class E2BProvider(HostedAgentProvider):
    """Sandboxes of the account that E2B_API_KEY names; an image is a template's name or id."""

    name: ClassVar[str] = NAME
    _root_is_ours: ClassVar[bool] = True

    def __init__(self, *, api_key: str | None = None, timeout: float = 60.0) -> None:
        """`api_key` defaults to E2B_API_KEY.

        `timeout` bounds in seconds what E2B may take to make a sandbox; other answers have shorter
        bounds, unless the timeout is shorter still.
        """
        super().__init__()
        self._account = Account(api_key, timeout)
        self._machines: dict[str, Machine] = {}
        self._heartbeats = Heartbeats(self._set_timeout)
        self._creations = Creations(self.delete, provider=NAME)

    def check(self, spec: SandboxSpec) -> None:
        self._account.check()
        _spec.check(spec)

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        key = secrets.token_hex(16)
        sandbox_id = await self._creations.once(
            lambda: self._create(spec, key),
            lambda: self._with_key(key),
            left=f"a sandbox with the tag {_spec.KEY_TAG}={key}",
        )
        async with self._creations.preparing(sandbox_id):
            await self._begin(sandbox_id, spec, user=_USER)
        if spec.lifetime is None:
            self._heartbeats.start(sandbox_id)
        return sandbox_id

    async def _create(self, spec: SandboxSpec, key: str) -> str:
        template = spec.image or _DEFAULT_TEMPLATE
        body = NewSandboxV2(
            template_id=template,
            timeout=whole_seconds(spec.lifetime, provider=NAME, maximum=_spec.MAX_LIFETIME),
            allow_internet_access=spec.network == "internet",
            metadata=_spec.metadata(spec, key),
        )
        answer = await self._account.call(
            post_v2_sandboxes.asyncio_detailed,
            what=f"create a sandbox from template {template!r}",
            template=template,
            slow=True,
            body=body,
            idempotency_key=key,
        )
        made: Any = answer.parsed  # the generated classes are untyped
        if not isinstance(made.sandbox_id, str) or not _ID.fullmatch(made.sandbox_id):
            raise UnclearError(
                f"e2b has made a sandbox with the id {made.sandbox_id!r}, which is none of E2B's; "
                "check E2B_API_URL",
                provider=NAME,
            )
        try:
            self._enter(made)
        except ConfigurationError as error:
            await self._creations.discard(made.sandbox_id, error)
            raise
        return made.sandbox_id

    async def _with_key(self, key: str) -> list[str]:
        return [info.id async for info in self.list({_spec.KEY_TAG: key})]

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
            if not answer.content.lstrip().startswith(b"["):  # the SDK takes {} for an empty list
                raise ProviderUnavailableError(
                    "what answered to list sandboxes does not speak E2B's protocol; check "
                    "E2B_API_URL and any proxy",
                    provider=NAME,
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
        await self._forget(sandbox_id)
        machine = self._machines.pop(sandbox_id, None)
        if machine is not None:
            await machine.aclose(ended=True)
        if not _ID.fullmatch(sandbox_id):
            return
        try:
            await repeatable(
                lambda: self._account.call(
                    delete_sandboxes_sandbox_id.asyncio_detailed,
                    sandbox_id,
                    what="stop a sandbox",
                    sandbox_id=sandbox_id,
                    done=True,
                )
            )
        except SandboxNotFoundError:
            pass

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        seconds = whole_seconds(lifetime, provider=NAME, maximum=_spec.MAX_LIFETIME)
        await self._heartbeats.stop(sandbox_id)
        await self._set_timeout(sandbox_id, seconds)

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> Program:
        try:
            return await run(await self._machine(sandbox_id), argv)
        except UnclearError as error:
            raise ProviderUnavailableError(
                str(error), provider=NAME, sandbox_id=sandbox_id, retry_after=error.retry_after
            ) from error
        except SandboxNotFoundError:
            self._machines.pop(sandbox_id, None)
            raise

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
        try:
            await self._creations.settle()
        finally:
            await super().aclose()
            await self._heartbeats.aclose()
            for machine in self._machines.values():
                await machine.aclose()
            self._machines.clear()
            await self._account.aclose()

    async def _machine(self, sandbox_id: str) -> Machine:
        machine = self._machines.get(sandbox_id)
        if machine is None:
            found = await self._detail(sandbox_id)
            machine = self._enter(found)
        return machine

    def _enter(self, found: Any) -> Machine:  # Any: of two generated classes
        machine = self._machines[found.sandbox_id] = Machine(
            self._account,
            found.sandbox_id,
            domain=found.domain,
            token=found.envd_access_token,
            version=str(found.envd_version),
        )
        return machine

    async def _detail(self, sandbox_id: str) -> Any:  # Any: the generated classes are untyped
        if not _ID.fullmatch(sandbox_id):
            raise gone(sandbox_id)
        answer = await self._account.call(
            get_sandboxes_sandbox_id.asyncio_detailed,
            sandbox_id,
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        if _tags(answer.parsed).get(_spec.MARKER) != "1":
            raise gone(sandbox_id)
        return answer.parsed

    async def _set_timeout(self, sandbox_id: str, seconds: int) -> None:
        if not _ID.fullmatch(sandbox_id):
            raise gone(sandbox_id)
        await self._account.call(
            post_sandboxes_sandbox_id_timeout.asyncio_detailed,
            sandbox_id,
            what="renew a sandbox",
            sandbox_id=sandbox_id,
            done=True,
            body=SandboxTimeoutRequest(timeout=seconds),
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
