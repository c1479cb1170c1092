"""The e2b provider: creates, lists and deletes sandboxes; the agent in each sandbox does the rest."""

import re
import secrets
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from e2b.api.client.api.sandboxes import (
    delete_sandboxes_sandbox_id,
    get_sandboxes_sandbox_id,
    get_v2_sandboxes,
    post_sandboxes,
    post_sandboxes_sandbox_id_snapshots,
    post_sandboxes_sandbox_id_timeout,
    post_v2_sandboxes,
)
from e2b.api.client.api.snapshots import get_snapshots
from e2b.api.client.api.templates import delete_templates_template_id
from e2b.api.client.models import (
    NewSandbox,
    NewSandboxV2,
    SandboxSnapshotRequest,
    SandboxTimeoutRequest,
)
from e2b.api.client.types import UNSET, Unset

from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._hosted.agent import HostedInstance, UploadRefusedError
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, converted, repeatable
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers._hosted.lifetime import LEASE, keep_renewed, whole_seconds
from sandboxkit.providers._hosted.snapshots import SnapshotProvider
from sandboxkit.providers.e2b import _pausing, _server, _spec
from sandboxkit.providers.e2b._account import E2BAccount
from sandboxkit.providers.e2b._answers import NAME, NoRouteError
from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.providers.e2b._run import run
from sandboxkit.providers.e2b._stream import E2BProgram
from sandboxkit.types import Diagnosis, PublicUrl, SandboxInfo, SandboxSpec, SandboxState

_DEFAULT_TEMPLATE = "base"
_ID = re.compile(r"[a-z0-9][a-z0-9.-]{0,319}")
"""Letters and digits are an id of E2B, a UUID one of AgentENV, a namespace and a name one of OpenKruise."""
_PAGE = 100
_UNCLEAR = (502, 503, 504)
"""HTTP statuses of a proxy that may have forwarded the request."""
_USER = "user"
"""The user as which E2B runs commands by default."""


@dataclass(eq=False)
class E2BInstance(HostedInstance):
    machine: Machine | None = None
    """The client of the sandbox's daemon; None until its connection data are known."""
    traffic_token: str | None = None
    """The token for requests to public ports; only the response to the creation contains it."""
    left: float | None = None
    """The lifetime (s) that was left when this provider paused the sandbox."""
    renewed: bool = False
    """Whether it was being renewed then."""

    async def aclose(self) -> None:
        await super().aclose()
        machine, self.machine = self.machine, None
        if machine is not None:
            await machine.aclose(ended=self.deletions > 0)


class E2BProvider(SnapshotProvider[E2BInstance]):
    """Sandboxes of the account of E2B_API_KEY. A spec's image is the name or id of an E2B template."""

    name: ClassVar[str] = NAME
    native_egress: ClassVar[bool] = True

    def __init__(self, *, api_key: str | None = None, timeout: float = 60.0) -> None:
        """`api_key` defaults to E2B_API_KEY.

        `timeout` is how long (s) E2B may take to create a sandbox. Most other calls have a shorter
        limit, but never a longer one than `timeout`.
        """
        super().__init__(E2BInstance)
        self._account = E2BAccount(api_key, timeout)
        self._takes_uploads = True
        self._second_version = True
        """Whether to create with version 2 of the API, which servers other than E2B's may lack."""
        self._creations = Creations(self.delete, provider=NAME)

    def check(self, spec: SandboxSpec) -> None:
        self._account.check()
        _spec.check(spec)

    async def _bare(self, spec: SandboxSpec) -> str:
        key = secrets.token_hex(16)
        return await self._creations.once(
            lambda: self._create(spec, key),
            lambda: self._with_key(key),
            left=f"a sandbox with the tag {_spec.KEY_TAG}={key}",
        )

    async def _make(self, spec: SandboxSpec, first: FirstCommand | None) -> str:
        self._check_snapshot_id(spec)
        if spec.snapshot is not None:
            first = None  # `exec` sends it, after the check below
        sandbox_id = await self._bare(spec)
        async with self._creations.preparing(sandbox_id):
            if spec.native_rules is not None:
                detail = await self._detail(sandbox_id)
                _spec.check_network(spec, detail.network, sandbox_id)
            await self._begin(sandbox_id, spec, first, user=_USER)
            if spec.snapshot is not None:
                self._check_restarted(sandbox_id, spec.snapshot)
            if spec.lifetime is None:
                if not self._account.is_e2bs:  # the server may lack the route
                    await self._set_timeout(sandbox_id, LEASE)
                await self._instance(sandbox_id).set_timer(
                    keep_renewed(lambda seconds: self._set_timeout(sandbox_id, seconds))
                )
        return sandbox_id

    async def _create(self, spec: SandboxSpec, key: str) -> str:
        if self._second_version:
            try:
                made = await self._post(spec, key, post_v2_sandboxes, NewSandboxV2, key)
            except NoRouteError:
                made = await self._post(spec, key, post_sandboxes, NewSandbox)
                self._second_version = False
        else:
            made = await self._post(spec, key, post_sandboxes, NewSandbox)
        if not isinstance(made.sandbox_id, str) or not _ID.fullmatch(made.sandbox_id):
            raise AmbiguousError(
                f"e2b returned the sandbox id {made.sandbox_id!r}, which is not one of E2B's; check "
                "E2B_API_URL"
            )
        try:
            self._enter(made)
        except ConfigurationError as error:
            await self._creations.discard(made.sandbox_id, error)
            raise
        return made.sandbox_id

    # Any: the generated modules, classes and responses are untyped.
    async def _post(
        self, spec: SandboxSpec, key: str, route: Any, kind: Any, idempotency_key: str | None = None
    ) -> Any:
        template = spec.snapshot or self._image_of(spec)
        internet = spec.network == "internet" or spec.native_rules is not None
        body = kind(
            template_id=template,
            timeout=whole_seconds(spec.lifetime, provider=NAME, maximum=_spec.MAX_LIFETIME),
            allow_internet_access=internet,
            network=_spec.network(spec, denied=not internet and idempotency_key is None),
            metadata=_spec.metadata(spec, key),
        )
        options: dict[str, Any] = {}
        if idempotency_key is None:
            body.secure = True  # version 2 always is
            body.auto_pause = False  # AgentENV's default is True
        else:
            options["idempotency_key"] = idempotency_key
        try:
            answer = await self._account.call(
                route.asyncio_detailed,
                what=f"create a sandbox from template {template!r}",
                template=template,
                slow=True,
                body=body,
                **options,
            )
        except ImageNotFoundError as error:
            if spec.snapshot is None:
                raise
            raise self._missing(spec.snapshot) from error
        return answer.parsed

    def _account_name(self) -> str:
        config = self._account.config()
        return f"{config.api_url} {config.api_key}"

    def _image_of(self, spec: SandboxSpec) -> str:
        return spec.image or _DEFAULT_TEMPLATE

    async def _snapshot(self, sandbox_id: str, name: str, *, memory: bool | Unset = UNSET) -> str:
        await _server.check_snapshots(self._account)
        answer: Any = await self._account.call(  # Any: the generated responses are untyped
            post_sandboxes_sandbox_id_snapshots.asyncio_detailed,
            sandbox_id,
            what="make a snapshot",
            sandbox_id=sandbox_id,
            slow=True,
            body=SandboxSnapshotRequest(name=name, memory=memory),
        )
        return str(answer.parsed.snapshot_id)

    async def confirm_snapshots(self) -> None:
        await _server.check_snapshots(self._account)

    async def _snapshot_there(self, name: str, reference: str | None) -> str | None:
        answer = await self._account.call(
            get_snapshots.asyncio_detailed, what="list snapshots", name=name, limit=1
        )
        return next((str(each.snapshot_id) for each in answer.parsed or ()), None)

    async def _keep_files(self, sandbox_id: str, name: str, seconds: int) -> str:
        return await self._snapshot(sandbox_id, name, memory=False)

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        async for answer in self._pages(get_snapshots, "list snapshots"):
            for found in answer.parsed or ():
                yield str(found.snapshot_id)

    # Any: the generated modules and responses are untyped.
    async def _pages(self, route: Any, what: str, **arguments: Any) -> AsyncIterator[Any]:
        token = ""
        while True:
            answer = await self._account.call(
                route.asyncio_detailed,
                what=what,
                limit=_PAGE,
                next_token=token or UNSET,
                **arguments,
            )
            yield answer
            token = answer.headers.get("x-next-token", "")
            if not token:
                return

    async def _remove_snapshot(self, reference: str) -> None:
        try:
            await self._account.call(
                delete_templates_template_id.asyncio_detailed,
                urllib.parse.quote(reference, safe=""),
                what="remove a snapshot",
                sandbox_id=reference,
                done=True,
            )
        except SandboxNotFoundError:
            pass

    async def _with_key(self, key: str) -> list[str]:
        return [info.id async for info in self.list({_spec.KEY_TAG: key})]

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        wanted = {**tags, _spec.MARKER: "1"}
        # E2B decodes this twice, AgentENV and OpenKruise once: pairs that need quoting are compared here only.
        quoted = {k: v for k, v in wanted.items() if v and urllib.parse.quote(k + v) == k + v}
        metadata = urllib.parse.urlencode(quoted)
        async for answer in self._pages(get_v2_sandboxes, "list sandboxes", metadata=metadata):
            if not answer.content.lstrip().startswith(b"["):  # the SDK takes {} for an empty list
                raise ProviderUnavailableError(
                    "the response to the request to list sandboxes does not follow E2B's protocol; check "
                    "E2B_API_URL and any proxy"
                )
            for found in answer.parsed or ():
                info = _info(found)
                if wanted.items() <= info.tags.items():
                    yield info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return _info(await self._detail(sandbox_id))

    async def delete(self, sandbox_id: str) -> None:
        async with self._deletion(sandbox_id) as instance:
            # Streams that are closed properly leave reusable connections for the next start.
            if instance.machine is not None:
                instance.machine.is_deleted = True
            await instance.disconnect()
            try:
                await self._delete(sandbox_id)
            finally:
                await instance.aclose()

    async def _delete(self, sandbox_id: str) -> None:
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
        except SandboxNotFoundError as error:
            if _server.lost_route(error) and sandbox_id in [
                info.id async for info in self.list({})
            ]:
                raise ProviderUnavailableError(
                    f"the server does not find sandbox {sandbox_id!r}, but still lists it: {error}; try again"
                ) from error

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        seconds = whole_seconds(lifetime, provider=NAME, maximum=_spec.MAX_LIFETIME)
        await self._known(sandbox_id).set_timer(None)
        await self._set_timeout(sandbox_id, seconds)

    def check_pause(self) -> None:
        pass

    async def pause(self, sandbox_id: str) -> None:
        detail = await self._detail(sandbox_id)
        if detail.state == _pausing.PAUSED:
            return
        instance = self._instance(sandbox_id)
        instance.renewed = instance.timer is not None
        instance.left = detail.end_at.timestamp() - time.time()
        instance.hold(True)
        try:
            try:
                await _pausing.request_pause(self._account, sandbox_id)
            except ProviderUnavailableError:
                # It may be paused in spite of the lost response, or another process was first.
                if (await self._detail(sandbox_id)).state != _pausing.PAUSED:
                    raise
        except BaseException:
            instance.hold(False)
            raise
        await instance.set_timer(None)

    async def resume(self, sandbox_id: str) -> None:
        instance = self._instance(sandbox_id)
        try:
            detail = await self._detail(sandbox_id)
        except SandboxNotFoundError:
            instance.hold(False)  # so that commands in flight find that it is gone
            raise
        if detail.state == _pausing.PAUSED:
            seconds = _pausing.seconds_left(instance.left, detail)
            self._enter(await _pausing.request_resume(self._account, sandbox_id, seconds))
        if instance.paused:
            if instance.renewed:
                await instance.set_timer(
                    keep_renewed(lambda seconds: self._set_timeout(sandbox_id, seconds))
                )
            instance.left = None
            instance.hold(False)

    async def _client(self, sandbox_id: str) -> AgentClient:
        if self._known(sandbox_id).paused:
            raise _pausing.paused_error(sandbox_id)
        return await super()._client(sandbox_id)

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> E2BProgram:
        try:
            with converted():
                return await run(await self._machine(sandbox_id), argv)
        except SandboxNotFoundError:
            self._known(sandbox_id).machine = None
            await self._refuse_paused(sandbox_id)
            raise

    def _can_upload(self) -> bool:
        # A probe of streamed input may run a program twice, and both would wait for the file.
        return self._account.streams is True and super()._can_upload()

    async def _upload(self, sandbox_id: str, path: str, data: bytes) -> None:
        with converted():
            status = await (await self._machine(sandbox_id)).upload(path, data)
        if status in _UNCLEAR:
            raise AmbiguousError(f"e2b responded to the upload of a file with {status}")
        if status >= 300:
            raise UploadRefusedError(status)

    async def diagnose(self) -> Diagnosis:
        isolation, detail = "its own virtual machine on E2B's servers", ""
        try:
            await self._account.call(
                get_v2_sandboxes.asyncio_detailed, what="list sandboxes", limit=1
            )
            if not self._account.is_e2bs:
                isolation, detail = await _server.describe(self._account)
        except SandboxError as error:
            return Diagnosis(False, isolation, "no access to E2B", str(error))
        return Diagnosis(
            True, isolation, f"the key works at {self._account.config().api_url}{detail}"
        )

    async def aclose(self) -> None:
        try:
            await self._creations.settle()
        finally:
            await super().aclose()
            await self._account.aclose()

    async def _machine(self, sandbox_id: str) -> Machine:
        return self._known(sandbox_id).machine or self._enter(await self._detail(sandbox_id))

    def _enter(self, found: Any) -> Machine:  # Any: one of two generated classes
        machine = self._instance(found.sandbox_id).machine = Machine(
            self._account,
            found.sandbox_id,
            domain=found.domain,
            token=found.envd_access_token,
            version=str(found.envd_version),
        )
        if isinstance(token := getattr(found, "traffic_access_token", None), str):
            self._instance(found.sandbox_id).traffic_token = token
        return machine

    async def public_url(self, sandbox_id: str, port: int) -> PublicUrl:
        url, headers = (await self._machine(sandbox_id)).address(port)
        if token := self._known(sandbox_id).traffic_token:
            return PublicUrl(url, "token", {**headers, "e2b-traffic-access-token": token})
        network = (await self._detail(sandbox_id)).network
        if network and network.allow_public_traffic is False:
            raise ConfigurationError(
                "requests to this sandbox need a token, which only the process that made it has: call "
                "public_url() there"
            )
        return PublicUrl(url, "anyone", headers)

    async def _detail(self, sandbox_id: str) -> Any:  # Any: the generated classes are untyped
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        answer = await self._account.call(
            get_sandboxes_sandbox_id.asyncio_detailed,
            sandbox_id,
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        if _tags(answer.parsed).get(_spec.MARKER) != "1":
            raise no_sandbox(sandbox_id)
        return answer.parsed

    async def _set_timeout(self, sandbox_id: str, seconds: int) -> None:
        if not _ID.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        try:
            await self._account.call(
                post_sandboxes_sandbox_id_timeout.asyncio_detailed,
                sandbox_id,
                what="renew a sandbox",
                sandbox_id=sandbox_id,
                done=True,
                body=SandboxTimeoutRequest(timeout=seconds),
            )
        except (SandboxNotFoundError, AmbiguousError):  # AgentENV and OpenKruise send 500
            await self._refuse_paused(sandbox_id)
            raise

    async def _refuse_paused(self, sandbox_id: str) -> None:
        """Raise SandboxPausedError if a sandbox that E2B does not find is paused."""
        if (await self._detail(sandbox_id)).state == _pausing.PAUSED:
            raise _pausing.paused_error(sandbox_id) from None


def _tags(found: Any) -> dict[str, str]:  # Any: one of several generated classes
    return dict(found.metadata or {})


def _info(found: Any) -> SandboxInfo:
    return SandboxInfo(
        id=found.sandbox_id,
        provider=NAME,
        state=SandboxState(found.state),
        tags=_tags(found),
        image=found.alias or found.template_id,
        created_at=found.started_at,
        # Of a paused sandbox it is the time of the pause.
        expires_at=None if found.state == _pausing.PAUSED else found.end_at,
    )
