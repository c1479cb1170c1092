"""The e2b provider: creates, lists, pauses and deletes sandboxes; the agent in each sandbox does the rest."""

import math
import re
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import anyio
from e2b.api.client.api.sandboxes import (
    delete_sandboxes_sandbox_id,
    get_sandboxes_sandbox_id,
    get_v2_sandboxes,
    post_sandboxes,
    post_sandboxes_sandbox_id_connect,
    post_sandboxes_sandbox_id_pause,
    post_sandboxes_sandbox_id_snapshots,
    post_sandboxes_sandbox_id_timeout,
    post_v2_sandboxes,
)
from e2b.api.client.api.snapshots import get_snapshots
from e2b.api.client.api.templates import delete_templates_template_id
from e2b.api.client.models import (
    ConnectSandbox,
    NewSandbox,
    NewSandboxV2,
    SandboxPauseRequest,
    SandboxSnapshotRequest,
    SandboxTimeoutRequest,
)
from e2b.api.client.types import UNSET, Unset

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxNotFoundError,
    SandboxPausedError,
)
from sandboxkit.provider import Box, FirstCommand, no_sandbox
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._hosted.agent import UploadRefusedError
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, repeatable
from sandboxkit.providers._hosted.lifetime import LEASE, keep_renewed
from sandboxkit.providers._hosted.vendor import VendorBox, VendorProvider
from sandboxkit.providers.e2b import _server, _spec
from sandboxkit.providers.e2b._account import E2BAccount
from sandboxkit.providers.e2b._answers import NAME, NoRouteError
from sandboxkit.providers.e2b._machine import Machine
from sandboxkit.providers.e2b._stream import E2BProgram, is_refusal
from sandboxkit.types import PublicUrl, SandboxInfo, SandboxSpec, SandboxState

_PAGE = 100
_UNCLEAR = (502, 503, 504)
"""HTTP statuses of a proxy that may have forwarded the request."""
_PAUSED = "paused"
"""The state of a paused sandbox in E2B's descriptions."""
_EXPIRES = "sandboxkit.expires"
_KEY_TAG = "sandboxkit.create"
_PROBE = ("/bin/sh", "-c", 'read -r line && echo && exec "$@"', "sh")
"""A shell command that outputs one byte when its first input line arrives, then execs the program."""
_PROBE_SECONDS = 4.0


class E2BBox(VendorBox["E2BProvider"]):
    """One sandbox of E2B."""

    user = "user"
    ids = re.compile(r"[a-z0-9][a-z0-9.-]{0,319}")
    """Letters and digits are an id of E2B, a UUID one of AgentENV, a namespace and a name one of OpenKruise."""

    def __init__(self, provider: "E2BProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.machine: Machine | None = None
        """The client of the sandbox's daemon; None until its connection data are known."""
        self.traffic_token: str | None = None
        """The token for requests to public ports; only the response to the creation contains it."""
        self.left: float | None = None
        """The lifetime (s) that was left when this provider paused the sandbox."""
        self.renewed = False
        """Whether it was being renewed then."""

    async def aclose(self) -> None:
        await super().aclose()
        self.machine = None

    # Any: the generated modules and responses are untyped.
    async def _request(self, route: Any, what: str, **options: Any) -> Any:
        """Call E2B about this sandbox, and return the parsed response."""
        answer = await self.backend.account.call(
            route.asyncio_detailed, self._existing_id(), what=what, sandbox_id=self.id, **options
        )
        return answer.parsed

    async def prepare(self, spec: SandboxSpec, first: FirstCommand | None) -> None:
        if spec.native_rules is not None:
            network = (await self._detail()).network
            self.backend.check_stored(spec, _spec.allowed(network))
        # In a sandbox from a snapshot, `exec` sends the first command, after the check.
        await super().prepare(spec, first if spec.snapshot is None else None)
        if spec.snapshot is not None:
            self._check_restarted(spec.snapshot)
        if spec.lifetime is None and not self.backend.account.is_e2bs:
            await self._set_lifetime(LEASE)  # the server may lack the route

    async def _keep_files(self, name: str, seconds: int | None) -> str:
        await _server.check_snapshots(self.backend.account)
        memory: bool | Unset = UNSET if seconds is None else False
        made = await self._request(
            post_sandboxes_sandbox_id_snapshots,
            "make a snapshot",
            slow=True,
            body=SandboxSnapshotRequest(name=name, memory=memory),
        )
        return str(made.snapshot_id)

    async def info(self) -> SandboxInfo:
        return _info(await self._detail())

    async def _end(self) -> None:
        # Streams that are closed properly leave reusable connections for the next start.
        if self.machine is not None:
            self.machine.is_deleted = True
        await self.disconnect()
        try:
            await repeatable(
                lambda: self._request(delete_sandboxes_sandbox_id, "stop a sandbox", done=True)
            )
        except SandboxNotFoundError as error:
            if _server.lost_route(error) and self.id in [
                info.id async for info in self.backend.list({})
            ]:
                raise ProviderUnavailableError(
                    f"the server does not find sandbox {self.id!r}, but still lists it: {error}; try again"
                ) from error

    async def pause(self) -> None:
        detail = await self._detail()
        if detail.state == _PAUSED:
            return
        self.backend.keep(self)
        self.renewed = self.timer is not None
        self.left = detail.end_at.timestamp() - time.time()
        self.hold(True)
        try:
            try:
                await self._request(
                    post_sandboxes_sandbox_id_pause,
                    "pause a sandbox",
                    done=True,
                    slow=True,
                    body=SandboxPauseRequest(),
                )
            except ProviderUnavailableError:
                # It may be paused in spite of the lost response, or another process was first.
                if (await self._detail()).state != _PAUSED:
                    raise
        except BaseException:
            self.hold(False)
            raise
        await self.set_timer(None)

    async def resume(self) -> None:
        try:
            detail = await self._detail()
        except SandboxNotFoundError:
            self.hold(False)  # so that commands in flight find that it is gone
            raise
        if detail.state == _PAUSED:
            self.enter(
                await self._request(
                    post_sandboxes_sandbox_id_connect,
                    "resume a sandbox",
                    slow=True,
                    body=ConnectSandbox(timeout=_seconds_left(self.left, detail)),
                )
            )
        if self.paused:
            if self.renewed:
                await self.set_timer(keep_renewed(self._set_lifetime))
            self.left = None
            self.hold(False)

    async def _client(self) -> AgentClient:
        if self.paused:
            raise self._paused_error()
        return await super()._client()

    async def _run(self, argv: tuple[str, ...]) -> E2BProgram:
        try:
            return await start_program(await self._machine(), argv)
        except SandboxNotFoundError:
            self.machine = None
            await self._refuse_paused()
            raise

    async def _upload(self, path: str, data: bytes) -> None:
        status = await (await self._machine()).upload(path, data)
        if status in _UNCLEAR:
            raise AmbiguousError(f"e2b responded to the upload of a file with {status}")
        if status >= 300:
            raise UploadRefusedError(status)

    async def _machine(self) -> Machine:
        return self.machine or self.enter(await self._detail())

    def enter(self, found: Any) -> Machine:  # Any: one of two generated classes
        """Return the client of the sandbox's daemon, which E2B's description makes possible."""
        self.machine = Machine(
            self.backend.account,
            self.endings,
            self.id,
            domain=found.domain,
            token=found.envd_access_token,
            version=str(found.envd_version),
        )
        if isinstance(token := getattr(found, "traffic_access_token", None), str):
            self.traffic_token = token
        return self.machine

    async def public_url(self, port: int) -> PublicUrl:
        url, headers = (await self._machine()).address(port)
        if token := self.traffic_token:
            return PublicUrl(url, "token", {**headers, "e2b-traffic-access-token": token})
        network = (await self._detail()).network
        if network and network.allow_public_traffic is False:
            raise ConfigurationError(
                "requests to this sandbox need a token, which only the process that made it has: call "
                "public_url() there"
            )
        return PublicUrl(url, "anyone", headers)

    async def _detail(self) -> Any:  # Any: the generated classes are untyped
        found = await self._request(get_sandboxes_sandbox_id, "describe a sandbox")
        if not self.backend.marks.items() <= _tags(found).items():
            raise no_sandbox(self.id)
        return found

    async def _set_lifetime(self, seconds: int) -> None:
        try:
            await self._request(
                post_sandboxes_sandbox_id_timeout,
                "renew a sandbox",
                done=True,
                body=SandboxTimeoutRequest(timeout=seconds),
            )
        except (SandboxNotFoundError, AmbiguousError):  # AgentENV and OpenKruise send 500
            await self._refuse_paused()
            raise

    async def _refuse_paused(self) -> None:
        """Raise SandboxPausedError if a sandbox that E2B does not find is paused."""
        if (await self._detail()).state == _PAUSED:
            raise self._paused_error() from None

    def _paused_error(self) -> SandboxPausedError:
        return SandboxPausedError(f"sandbox {self.id!r} is paused: call resume() first")


class E2BProvider(VendorProvider[E2BBox, E2BAccount]):
    """Sandboxes of the account of E2B_API_KEY. A spec's image is the name or id of an E2B template."""

    name: ClassVar[str] = NAME
    box_type: ClassVar[type[Box]] = E2BBox
    native_egress: ClassVar[bool] = True
    rules: ClassVar = _spec.RULES
    longest: ClassVar[int] = 24 * 3600  # E2B itself enforces the shorter limit of a smaller plan
    marks: ClassVar[Mapping[str, str]] = {"sandboxkit.e2b": "1"}
    default_image: ClassVar[str] = "base"
    isolation: ClassVar[str] = "its own virtual machine on E2B's servers"

    def __init__(self, *, api_key: str | None = None, timeout: float = 60.0) -> None:
        """`api_key` defaults to E2B_API_KEY.

        `timeout` is how long (s) E2B may take to create a sandbox. Most other calls have a shorter
        limit, but never a longer one than `timeout`.
        """
        super().__init__(E2BAccount(api_key, timeout))
        self.takes_uploads = True
        self._second_version = True
        """Whether to create with version 2 of the API, which servers other than E2B's may lack."""

    def check_pause(self) -> None:
        pass

    async def _create(self, spec: SandboxSpec, key: str) -> E2BBox:
        if self._second_version:
            try:
                made = await self._post(spec, key, post_v2_sandboxes, NewSandboxV2, key)
            except NoRouteError:
                made = await self._post(spec, key, post_sandboxes, NewSandbox)
                self._second_version = False
        else:
            made = await self._post(spec, key, post_sandboxes, NewSandbox)
        if not isinstance(made.sandbox_id, str) or not E2BBox.ids.fullmatch(made.sandbox_id):
            raise AmbiguousError(
                f"e2b returned the sandbox id {made.sandbox_id!r}, which is not one of E2B's; check "
                "E2B_API_URL"
            )
        box = self.box(made.sandbox_id)
        try:
            box.enter(made)
        except ConfigurationError as error:
            await self._creations.discard(box, error)
            raise
        return box

    # Any: the generated modules, classes and responses are untyped.
    async def _post(
        self, spec: SandboxSpec, key: str, route: Any, kind: Any, idempotency_key: str | None = None
    ) -> Any:
        template = spec.snapshot or self._image_of(spec)
        internet = spec.network == "internet" or spec.native_rules is not None
        body = kind(
            template_id=template,
            timeout=self.seconds(spec.lifetime),
            allow_internet_access=internet,
            network=_spec.network(spec, denied=not internet and idempotency_key is None),
            metadata={**self.tags_of(spec), _KEY_TAG: key},
        )
        options: dict[str, Any] = {}
        if idempotency_key is None:
            body.secure = True  # version 2 always is
            body.auto_pause = False  # AgentENV's default is True
        else:
            options["idempotency_key"] = idempotency_key
        answer = await self.account.call(
            route.asyncio_detailed,
            what=f"create a sandbox from template {template!r}",
            slow=True,
            body=body,
            **options,
        )
        return answer.parsed

    async def confirm_snapshots(self) -> None:
        await _server.check_snapshots(self.account)

    async def snapshot_there(self, name: str, reference: str | None) -> str | None:
        answer = await self.account.call(
            get_snapshots.asyncio_detailed, what="list snapshots", name=name, limit=1
        )
        return next((str(each.snapshot_id) for each in answer.parsed or ()), None)

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        async for answer in self._pages(get_snapshots, "list snapshots"):
            for found in answer.parsed or ():
                yield str(found.snapshot_id)

    # Any: the generated modules and responses are untyped.
    async def _pages(self, route: Any, what: str, **arguments: Any) -> AsyncIterator[Any]:
        token = ""
        while True:
            answer = await self.account.call(
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

    async def remove_snapshot(self, reference: str) -> None:
        with suppress(SandboxNotFoundError):
            await self.account.call(
                delete_templates_template_id.asyncio_detailed,
                urllib.parse.quote(reference, safe=""),
                what="remove a snapshot",
                sandbox_id=reference,
                done=True,
            )

    async def _created(self, key: str) -> Sequence[E2BBox]:
        return [self.box(info.id) async for info in self.list({_KEY_TAG: key})]

    async def _listed(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        # E2B decodes this twice, AgentENV and OpenKruise once: pairs that need quoting are compared by us only.
        quoted = {k: v for k, v in tags.items() if v and urllib.parse.quote(k + v) == k + v}
        metadata = urllib.parse.urlencode(quoted)
        async for answer in self._pages(get_v2_sandboxes, "list sandboxes", metadata=metadata):
            if not answer.content.lstrip().startswith(b"["):  # the SDK takes {} for an empty list
                raise ProviderUnavailableError(
                    "the response to the request to list sandboxes does not follow E2B's protocol; check "
                    "E2B_API_URL and any proxy"
                )
            for found in answer.parsed or ():
                yield _info(found)

    def can_upload(self) -> bool:
        # A probe of streamed input may run a program twice, and both would wait for the file.
        return self.account.streams is True and super().can_upload()

    async def _reached(self) -> tuple[str, str]:
        isolation, detail = self.isolation, ""
        await self.account.call(get_v2_sandboxes.asyncio_detailed, what="list sandboxes", limit=1)
        if not self.account.is_e2bs:
            isolation, detail = await _server.describe(self.account)
        return isolation, f"the key works at {self.account.config().api_url}{detail}"


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
        expires_at=None if found.state == _PAUSED else found.end_at,
    )


async def start_program(machine: Machine, argv: tuple[str, ...]) -> E2BProgram:
    """Start a program as root. Raises SandboxNotFoundError, ProviderUnavailableError and others.

    A proxy may refuse calls with streamed input, or buffer such input until it is complete. The first
    program probes for that; the result applies to later programs in all sandboxes.
    """
    if machine.account.streams is None:
        program = await _start(machine, (*_PROBE, *argv), streamed=True)
        try:
            echoes = await _echoes(program, min(_PROBE_SECONDS, machine.response_seconds))
        except BaseException:
            await program.aclose()
            raise
        if echoes:
            machine.account.streams = True
            return program
        await program.aclose()
        if program.refused is None or is_refusal(program.refused):
            machine.account.streams = False
    return await _start(machine, argv, streamed=machine.account.streams is True)


async def _start(machine: Machine, argv: tuple[str, ...], *, streamed: bool) -> E2BProgram:
    program = E2BProgram(machine, machine.start(argv), streamed=streamed)
    try:
        await program.begin()
    except BaseException:
        await program.aclose()
        raise
    return program


async def _echoes(program: E2BProgram, seconds: float) -> bool:
    """Return whether input reaches the probe within `seconds`; raise the error of a probe that ended.

    A refused input is not an error.
    """
    with anyio.move_on_after(seconds):
        try:
            await program.send(b"\n")
            return await program.receive(1) == b"\n"
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            if program.refused is None:
                raise program.failure() from None
    return False


def _seconds_left(known: float | None, detail: Any) -> int:
    """Return the lifetime (s) that a paused sandbox had left.

    `known` is what this process noted at the pause. Otherwise it follows from the expiry among the tags and
    the end that E2B reports, which is the time of the pause. Without both it is a lease: other servers report
    an end in the far future.
    """
    paused: float = detail.end_at.timestamp()
    left: float = LEASE
    expires = dict(detail.metadata or {}).get(_EXPIRES)
    if known is not None:
        left = known
    elif expires is not None and paused < time.time() + LEASE:
        left = float(expires) - paused
    return max(math.ceil(left), 1)
