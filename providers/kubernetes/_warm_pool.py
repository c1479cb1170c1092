"""Sandboxes from a warm pool of the cluster: each is a claim, whose pod gets our agent by an exec call."""

import re
import time
from dataclasses import replace
from typing import Any, ClassVar

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    CommandStartError,
    ConfigurationError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.provider import FirstCommand, Output, StreamName
from sandboxkit.providers._agent.launch import agent_flags
from sandboxkit.providers._agent.link import Greeting
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._hosted.agent import HostedAgentProvider
from sandboxkit.providers._hosted.install import NoAgentError
from sandboxkit.providers._hosted.lifetime import keep_renewed
from sandboxkit.providers.kubernetes import _ends, _pod, _pool_claim, _rights
from sandboxkit.providers.kubernetes._diagnosis import diagnosis
from sandboxkit.providers.kubernetes._errors import refusal_of
from sandboxkit.providers.kubernetes._exec import PodProgram
from sandboxkit.providers.kubernetes._instance import PodInstance
from sandboxkit.providers.kubernetes._provider import KubernetesProvider
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import Command, Diagnosis, Exit, SandboxSpec

_BACKGROUND = {"propagationPolicy": "Background"}
_POLL = 0.2
_END_SECONDS = 3.0
_NO_OTHER_USER = re.compile(
    r"(setgroups|cannot act as .+|cannot become the user): operation not permitted"
)
"""The agent's words if root lacks a capability that it needs to run something as another user."""
_NO_CLAIMS = "install the CRDs and the controller of agent-sandbox (v1beta1) in the cluster"


# Any, here and below: claims and pods are JSON.
class WarmPoolProvider(KubernetesProvider, HostedAgentProvider[PodInstance]):
    """The provider that `KubernetesProvider(claims=...)` returns: sandboxes are claims on a SandboxWarmPool."""

    _resource: ClassVar[tuple[str, str]] = _pool_claim.CLAIMS
    _root_is_ours: ClassVar[bool] = True

    def waiting(self) -> list[str]:
        claims = [seen.pod for seen in self._watch.all() if not seen.gone]
        return [
            f"{claim['metadata']['name']} waits for the warm pool {self._pool!r}: "
            f"{_pool_claim.ready_words(claim)}"
            for claim in claims
            if not _pool_claim.is_ready(claim)
        ]

    @property
    def _pool(self) -> str:
        return self._options.claims or ""

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        return await self._create(spec)

    async def _create(self, spec: SandboxSpec, *, keeper: bool = False) -> str:
        name = self._new_name()
        claim = _pool_claim.manifest(
            name, spec, pool=self._pool, lease=self._options.lease, start=self._start_timeout
        )
        return await self._made(name, claim, spec)

    async def _post(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super()._post(name, body)
        except SandboxError as error:
            raise self._absent(error) from error

    async def _take(self, name: str, spec: SandboxSpec) -> None:
        """Wait until the claim is bound to a pod that is ready, and become the owner of an agent there."""
        await self._bound(name)
        place, pod = await self._found(name)
        _check_network(spec, pod)
        self._instance(name).place = place
        try:
            await self._begin(name, spec)
            if spec.user is not None or spec.profile == "strict":
                # The agent starts even if its commands cannot become their user.
                with anyio.fail_after(self._start_timeout):
                    await self.exec(name, Command(("sh", "-c", ":")), _ignore)
        except (OutcomeUnknownError, TimeoutError) as error:
            raise ProviderUnavailableError(
                f"{name} did not answer during its start: {error or 'no response'}",
                sandbox_id=name,
            ) from error
        except (SandboxNotFoundError, SandboxTerminatedError) as error:
            raise SandboxStartError(
                f"{name} ended before it was ready: {error}", sandbox_id=name
            ) from error
        except SandboxStartError as error:
            self._check_user(error)
            raise
        # From now on the lifetime counts, and a detached sandbox has no lease.
        if spec.lifetime is not None:
            await self._renewed(name, spec.lifetime)
        if not spec.detach:
            await self._instance(name).set_timer(
                keep_renewed(lambda _: self._renewed(name), int(self._options.lease))
            )

    def _check_user(self, error: SandboxError) -> None:
        """Raise ConfigurationError if the error says that the pod's root cannot switch users."""
        if _NO_OTHER_USER.search(str(error)):
            raise ConfigurationError(
                f"kubernetes cannot honour user or profile='strict' with claims={self._pool!r}: {error}; "
                "give the container of its SandboxTemplate the capabilities CHOWN, KILL, SETGID and "
                "SETUID, or leave the option out"
            ) from error

    async def _execute(
        self, sandbox_id: str, command: Command, output: Output, code: str | None = None
    ) -> Exit:
        try:
            return await super()._execute(sandbox_id, command, output, code)
        except CommandStartError as error:
            self._check_user(error)
            raise

    def _flags(self, spec: SandboxSpec, user: str | None) -> list[str]:
        lease = None if spec.detach else self._options.lease - self._options.grace
        return agent_flags(
            replace(spec, detach=False), user=user, lease=lease, drop_env="KUBERNETES_"
        )

    async def _bound(self, name: str) -> None:
        try:
            seen = await self._watch.until(name, _is_decided, seconds=self._start_timeout)
        except TimeoutError:
            last = self._watch.last(name)
            words = "it is not known" if last is None else _pool_claim.ready_words(last.pod)
            raise ProviderUnavailableError(
                f"the claim {name!r} on the warm pool {self._pool!r} got no sandbox within "
                f"{self._start_timeout:g} s: {words}",
                sandbox_id=name,
            ) from None
        error = _pool_claim.failure(seen.pod)
        if error is not None:
            raise error

    async def _found(self, sandbox_id: str) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return the pod and the container of a bound claim, and the pod's state.

        Raises SandboxNotFoundError if the pod does not exist, which its controller may replace.
        """
        name = _pool_claim.pod_of(await self._pod(sandbox_id))
        if not name:
            raise no_sandbox(sandbox_id)
        path = await self._api.path("pods", name)
        what = "describe a sandbox's pod"
        pod: dict[str, Any] = await self._api.call("GET", path, what=what, sandbox_id=sandbox_id)
        return (name, str(pod["spec"]["containers"][0]["name"])), pod

    async def _run(self, sandbox_id: str, argv: tuple[str, ...]) -> PodProgram:
        pod, container = await self._place(sandbox_id)
        return PodProgram(await self._api.exec(pod, container, argv, sandbox_id=sandbox_id))

    async def _place(self, sandbox_id: str) -> tuple[str, str]:
        known = self._known(sandbox_id)
        if known.place is None:
            known.place, _ = await self._found(sandbox_id)
        return known.place

    def _greeting(self, spec: SandboxSpec, first: FirstCommand | None) -> Greeting | None:
        return None  # it would be a part of a URL, which audit logs keep

    async def _connect(self, sandbox_id: str) -> ByteStream:
        try:
            return await HostedAgentProvider._connect(self, sandbox_id)
        except SandboxNotFoundError as error:
            # A restarted kubelet needs a moment before it knows its containers again.
            _, pod = await self._found(sandbox_id)
            if _ends.has_ended(PodStatus(pod)):
                raise
            raise ProviderUnavailableError(
                f"the node of {sandbox_id!r} does not know it yet: {error}"
            ) from error

    _info_of = staticmethod(_pool_claim.info_of)

    async def _renewed(self, sandbox_id: str, lifetime: float | None = None) -> None:
        """Renew a claim's lease, and its lifetime if one is given."""
        claim = await self._pod(sandbox_id)
        change = _pool_claim.changes(claim, lifetime)
        if lifetime is None:
            # A conflict is retried by the timer; without it a new lifetime could get lost.
            change["metadata"]["resourceVersion"] = claim["metadata"]["resourceVersion"]
        await self._api.call(
            "PATCH",
            await self._path(sandbox_id),
            change,
            what="renew a sandbox",
            content_type="application/merge-patch+json",
            sandbox_id=sandbox_id,
        )

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        await HostedAgentProvider.renew(self, sandbox_id, lifetime)
        await self._renewed(sandbox_id, lifetime)

    async def _until_removed(self, sandbox_id: str) -> None:
        """Remove a claim and return once no command runs; its controller removes the pod later."""
        if await self._ended(sandbox_id):
            await self._remove(sandbox_id, _BACKGROUND)
            return
        try:
            pod = _pool_claim.pod_of(await self._pod(sandbox_id))
        except SandboxNotFoundError:
            return
        await self._remove(sandbox_id, _BACKGROUND)
        if pod:  # no agent has killed the commands, and the template's grace period may be long
            await self._until_stopped(sandbox_id, pod)

    async def _why_none(self, sandbox_id: str, error: NoAgentError) -> SandboxError:
        try:
            if _pod.has_expired(await self._pod(sandbox_id)):
                return _ends.end_error(None, sandbox_id=sandbox_id, reason="lifetime")
        except SandboxError:
            pass  # the base class asks again, and reports it
        return await super()._why_none(sandbox_id, error)

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        known = self._known(sandbox_id)
        last = self._watch.last(sandbox_id) if known.is_ours else None
        if known.deletions:
            reason = _ends.DELETED
        elif last is not None and reason in ("", "lifetime"):
            # An agent that ended before the lifetime was asked to, by a deletion.
            expired = _pod.has_expired(last.pod)
            reason = "lifetime" if expired else reason and _ends.DELETED
        if reason or known.place is None:
            return _ends.end_error(None, sandbox_id=sandbox_id, reason=reason)
        pod = known.place[0]
        path = await self._api.path("pods", pod)
        deadline = time.monotonic() + _END_SECONDS
        seen: PodStatus | None = None
        try:
            while seen is None or (not _ends.has_ended(seen) and time.monotonic() < deadline):
                await anyio.sleep(0 if seen is None else _POLL)
                seen = PodStatus(await self._api.call("GET", path, what="explain a sandbox's end"))
        except SandboxNotFoundError:
            reason = "its pod is gone: its claim was deleted, or its node ended it"
        except SandboxError:
            pass  # report what is known already
        events = await _ends.events_of(self._api, pod)
        return _ends.end_error(seen, events, sandbox_id=sandbox_id, reason=reason)

    async def diagnose(self) -> Diagnosis:
        return await diagnosis(
            self._api, self._options, _rights.needed(claims=True), self._verified
        )

    async def _verified(self) -> str:
        try:
            await self._api.call("GET", _pool_claim.ROOT, what="find the claims of agent-sandbox")
        except SandboxError as error:
            raise self._absent(error) from error
        return f"claims on the warm pool {self._pool!r}"

    def _absent(self, error: SandboxError) -> SandboxError:
        """Return the error for a server without the CRDs, if this is one, or else the error itself."""
        refusal = refusal_of(error)
        if refusal is None or refusal.status != 404 or refusal.reason:
            return error
        return ConfigurationError(
            f"kubernetes cannot honour claims={self._pool!r}: {error}; {_NO_CLAIMS}"
        )


async def _ignore(stream: StreamName, chunk: bytes) -> None:
    pass


def _is_decided(seen: PodStatus) -> bool:
    return _pool_claim.is_ready(seen.pod) or _pool_claim.failure(seen.pod) is not None


def _check_network(spec: SandboxSpec, pod: dict[str, Any]) -> None:
    """Raise ConfigurationError unless the pod's label says that its network is the one asked for."""
    labels = pod["metadata"].get("labels") or {}
    offered = "none" if labels.get(_pod.NETWORK) == "none" else "internet"
    if spec.network != offered:
        raise ConfigurationError(
            f"kubernetes cannot honour network={spec.network!r}: the pods of this warm pool have "
            f"network={offered!r}. A template whose network policy denies all says so by the label "
            f"{_pod.NETWORK}=none of its pods"
        )


KubernetesProvider._pooled = WarmPoolProvider  # see KubernetesProvider.__new__
