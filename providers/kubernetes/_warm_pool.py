"""Sandboxes from a warm pool of the cluster: each is a claim, whose pod gets our agent by an exec call.

The kinds, fields and conditions are those of kubernetes-sigs/agent-sandbox, version v1beta1 of its API.
"""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
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
from sandboxkit.provider import Box, FirstCommand, Output, StreamName, no_sandbox
from sandboxkit.providers._agent.launch import agent_flags
from sandboxkit.providers._agent.link import Greeting
from sandboxkit.providers._hosted.agent import HostedBox, HostedProvider
from sandboxkit.providers._hosted.install import NoAgentError
from sandboxkit.providers._hosted.lifetime import keep_renewed
from sandboxkit.providers.kubernetes import _ends, _pod, _rights, _tags
from sandboxkit.providers.kubernetes._diagnosis import diagnosis
from sandboxkit.providers.kubernetes._errors import NAME, refusal_of
from sandboxkit.providers.kubernetes._exec import PodProgram
from sandboxkit.providers.kubernetes._provider import KubernetesProvider, PodBox
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import Command, Diagnosis, Exit, SandboxInfo, SandboxSpec, SandboxState

# Any: manifests and the API server's responses are JSON.
Json = dict[str, Any]

_GROUP = "extensions.agents.x-k8s.io/v1beta1"
ROOT = f"/apis/{_GROUP}"
CLAIMS = ("sandboxclaims", ROOT)
_LEASE = f"{_tags.PREFIX}lease"
"""The annotation with the seconds for which an owner keeps its claim; a detached sandbox has none."""
_KEPT = 300
"""Seconds for which the controller keeps a claim whose pod has finished, so that its end can be explained."""
_AFTER = 2.0
"""Seconds for which a claim outlives its lifetime, so that the agent ends the commands and tells why."""
_MISSING = ("WarmPoolNotFound", "TemplateNotFound")
_FINAL = ("InvalidMetadata", "ClaimExpired", "SandboxExpired", "PodFailed", "PodSucceeded")
"""The reasons for which a claim is not ready and never will be."""


def manifest(name: str, spec: SandboxSpec, *, pool: str, lease: float, start: float) -> Json:
    """Return the claim for a spec that has passed `check`; `start` is how long (s) its start may take.

    Its labels stay on it: the controller passes only labels of its own domains on to pods.
    """
    metadata: Json = {
        "name": name,
        "labels": _tags.labels(spec.tags),
        "annotations": {
            _tags.ANNOTATION: _tags.annotation(spec.tags),
            **({} if spec.detach else {_LEASE: f"{lease:.0f}"}),
        },
    }
    made: Json = {
        "apiVersion": _GROUP,
        "kind": "SandboxClaim",
        "metadata": metadata,
        "spec": {"warmPoolRef": {"name": pool}},
    }
    change = changes(made, spec.lifetime, later=start)
    metadata["annotations"] |= change["metadata"]["annotations"]
    kept = {"shutdownPolicy": "Delete", "ttlSecondsAfterFinished": _KEPT}
    made["spec"] |= {"lifecycle": {**kept, **change["spec"]["lifecycle"]}}
    return made


def changes(claim: Mapping[str, Any], lifetime: float | None = None, *, later: float = 0.0) -> Json:
    """Return the merge patch that renews a claim's lease, and gives it a new lifetime (s) from now.

    The controller deletes the claim at its shutdownTime: the earlier end of lease and lifetime, and `later`
    seconds more. The agent ends the commands at the end of the lifetime.
    """
    annotations = claim["metadata"].get("annotations") or {}
    noted = {} if lifetime is None else {_pod.EXPIRES: _pod.expiry(lifetime)}
    ends = [float({**annotations, **noted}.get(_pod.EXPIRES, math.inf)) + _AFTER]
    if _LEASE in annotations:
        ends.append(time.time() + float(annotations[_LEASE]))
    end = min(ends) + later
    lifecycle = {} if end == math.inf else {"shutdownTime": _rfc3339(end)}
    return {"metadata": {"annotations": noted}, "spec": {"lifecycle": lifecycle}}


def info_of(claim: Mapping[str, Any], /) -> SandboxInfo | None:
    """Return the sandbox that a claim is; None if it is not one of ours or is being deleted."""
    metadata: Mapping[str, Any] = claim["metadata"]
    if (
        not _pod.ID_PATTERN.fullmatch(metadata["name"])
        or (metadata.get("labels") or {}).get(_tags.MARKER) != "1"
        or metadata.get("deletionTimestamp")
    ):
        return None
    state = SandboxState.RUNNING if is_ready(claim) else SandboxState.STARTING
    expires = _pod.expires_of(claim)
    is_over = expires is not None and is_ready(claim) and expires < datetime.now(UTC)
    if is_over or _condition(claim).get("reason") in _FINAL:
        state = SandboxState.STOPPED
    return SandboxInfo(
        id=metadata["name"],
        provider=NAME,
        state=state,
        tags=_tags.tags_of(metadata),
        created_at=_pod.time_of(metadata.get("creationTimestamp")),
        expires_at=expires,
    )


def is_ready(claim: Mapping[str, Any]) -> bool:
    """Whether a claim has a Sandbox whose pod is ready."""
    return _condition(claim).get("status") == "True" and pod_of(claim) != ""


def pod_of(claim: Mapping[str, Any]) -> str:
    """Return the name of the Sandbox, and of its pod, that a claim is bound to; "" while it is not."""
    return str(((claim.get("status") or {}).get("sandbox") or {}).get("name") or "")


def failure(claim: Mapping[str, Any]) -> SandboxError | None:
    """Return why a claim will get no sandbox; None while it still may."""
    reason, name = _condition(claim).get("reason"), claim["metadata"]["name"]
    if reason in _MISSING:
        pool = claim["spec"]["warmPoolRef"]["name"]
        return ConfigurationError(
            f"kubernetes cannot honour claims={pool!r}: {ready_words(claim)}; make the SandboxWarmPool "
            "and its SandboxTemplate in this namespace"
        )
    if reason in _FINAL:
        text = f"{name} did not start: {ready_words(claim)}"
        return SandboxStartError(text, sandbox_id=name)
    return None


def ready_words(claim: Mapping[str, Any]) -> str:
    """Return the controller's words on whether a claim is ready."""
    ready = _condition(claim)
    if not ready:
        return "no controller of agent-sandbox has looked at the claim"
    return f"{ready.get('reason')}: {ready.get('message') or ''}".rstrip(": ")


def _condition(claim: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (claim.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == "Ready"), {})


def _rfc3339(when: float) -> str:
    return datetime.fromtimestamp(math.ceil(when), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_BACKGROUND = {"propagationPolicy": "Background"}
_POLL = 0.2
_END_SECONDS = 3.0
_NO_OTHER_USER = re.compile(
    r"(setgroups|cannot act as .+|cannot become the user): operation not permitted"
)
"""The agent's words if root lacks a capability that it needs to run something as another user."""
_NO_CLAIMS = "install the CRDs and the controller of agent-sandbox (v1beta1) in the cluster"


# Any, here and below: claims and pods are JSON.
class ClaimBox(PodBox, HostedBox):
    """A claim, and the pod that it is bound to."""

    _root_is_ours: ClassVar[bool] = True

    def __init__(self, provider: "WarmPoolProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.warm_pool = provider
        self.place: tuple[str, str] | None = None
        """The pod and its container; None before they are known."""

    async def _execute(self, command: Command, output: Output, code: str | None = None) -> Exit:
        try:
            return await super()._execute(command, output, code)
        except CommandStartError as error:
            self.warm_pool.check_user(error)
            raise

    def _flags(self, spec: SandboxSpec, user: str | None) -> list[str]:
        lease = None if spec.detach else self.backend.options.lease - self.backend.options.grace
        return agent_flags(
            replace(spec, detach=False), user=user, lease=lease, drop_env="KUBERNETES_"
        )

    async def find_pod(self) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return the pod and the container of a bound claim, and the pod's state.

        Raises SandboxNotFoundError if the pod does not exist, which its controller may replace.
        """
        name = pod_of(await self.pod())
        if not name:
            raise no_sandbox(self.id)
        path = await self.backend.api.path("pods", name)
        what = "describe a sandbox's pod"
        pod: dict[str, Any] = await self.backend.api.call(
            "GET", path, what=what, sandbox_id=self.id
        )
        return (name, str(pod["spec"]["containers"][0]["name"])), pod

    async def _run(self, argv: tuple[str, ...]) -> PodProgram:
        pod, container = await self._place()
        return PodProgram(await self.backend.api.exec(pod, container, argv, sandbox_id=self.id))

    async def _place(self) -> tuple[str, str]:
        if self.place is None:
            self.place, _ = await self.find_pod()
        return self.place

    def _greeting(self, spec: SandboxSpec, first: FirstCommand | None) -> Greeting | None:
        return None  # it would be a part of a URL, which audit logs keep

    async def _connect(self) -> ByteStream:
        try:
            return await HostedBox._connect(self)
        except SandboxNotFoundError as error:
            # A restarted kubelet needs a moment before it knows its containers again.
            _, pod = await self.find_pod()
            if _ends.has_ended(PodStatus(pod)):
                raise
            raise ProviderUnavailableError(
                f"the node of {self.id!r} does not know it yet: {error}"
            ) from error

    async def renew_claim(self, lifetime: float | None = None) -> None:
        """Renew a claim's lease, and its lifetime if one is given."""
        claim = await self.pod()
        change = changes(claim, lifetime)
        if lifetime is None:
            # A conflict is retried by the timer; without it a new lifetime could get lost.
            change["metadata"]["resourceVersion"] = claim["metadata"]["resourceVersion"]
        await self.backend.api.call(
            "PATCH",
            await self.backend.path(self.id),
            change,
            what="renew a sandbox",
            content_type="application/merge-patch+json",
            sandbox_id=self.id,
        )

    async def renew(self, lifetime: float) -> None:
        await HostedBox.renew(self, lifetime)
        await self.renew_claim(lifetime)

    async def _until_removed(self) -> None:
        """Remove a claim and return once no command runs; its controller removes the pod later."""
        if await self._ended():
            await self._remove(_BACKGROUND)
            return
        try:
            pod = pod_of(await self.pod())
        except SandboxNotFoundError:
            return
        await self._remove(_BACKGROUND)
        if pod:  # no agent has killed the commands, and the template's grace period may be long
            await self._until_stopped(pod)

    async def _why_none(self, error: NoAgentError) -> SandboxError:
        try:
            if _pod.has_expired(await self.pod()):
                return _ends.end_error(None, sandbox_id=self.id, reason="lifetime")
        except SandboxError:
            pass  # the base class asks again, and reports it
        return await super()._why_none(error)

    async def _why_ended(self, reason: str) -> SandboxError:
        last = self.backend.watch.last(self.id) if self.is_ours else None
        if self.deletions:
            reason = _ends.DELETED
        elif last is not None and reason in ("", "lifetime"):
            # An agent that ended before the lifetime was asked to, by a deletion.
            expired = _pod.has_expired(last.pod)
            reason = "lifetime" if expired else reason and _ends.DELETED
        if reason or self.place is None:
            return _ends.end_error(None, sandbox_id=self.id, reason=reason)
        pod = self.place[0]
        path = await self.backend.api.path("pods", pod)
        deadline = time.monotonic() + _END_SECONDS
        seen: PodStatus | None = None
        try:
            while seen is None or (not _ends.has_ended(seen) and time.monotonic() < deadline):
                await anyio.sleep(0 if seen is None else _POLL)
                seen = PodStatus(
                    await self.backend.api.call("GET", path, what="explain a sandbox's end")
                )
        except SandboxNotFoundError:
            reason = "its pod is gone: its claim was deleted, or its node ended it"
        except SandboxError:
            pass  # report what is known already
        events = await _ends.events_of(self.backend.api, pod)
        return _ends.end_error(seen, events, sandbox_id=self.id, reason=reason)


# Any, here and below: claims and pods are JSON.
class WarmPoolProvider(KubernetesProvider, HostedProvider[PodBox]):
    """The provider that `KubernetesProvider(claims=...)` returns: sandboxes are claims on a SandboxWarmPool."""

    _resource: ClassVar[tuple[str, str]] = CLAIMS
    box_type: ClassVar[type[Box]] = ClaimBox

    def waiting(self) -> list[str]:
        claims = [seen.pod for seen in self.watch.all() if not seen.gone]
        return [
            f"{claim['metadata']['name']} waits for the warm pool {self._pool!r}: "
            f"{ready_words(claim)}"
            for claim in claims
            if not is_ready(claim)
        ]

    @property
    def _pool(self) -> str:
        return self.options.claims or ""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> PodBox:
        self.check(spec)
        return await self._create(spec)

    async def _create(self, spec: SandboxSpec, *, keeper: bool = False) -> PodBox:
        name = self._new_name()
        claim = manifest(
            name, spec, pool=self._pool, lease=self.options.lease, start=self.start_timeout
        )
        return await self._made(name, claim, spec)

    async def _post(self, box: PodBox, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super()._post(box, body)
        except SandboxError as error:
            raise self._absent(error) from error

    async def _take(self, box: PodBox, spec: SandboxSpec) -> None:
        """Wait until the claim is bound to a pod that is ready, and become the owner of an agent there."""
        assert isinstance(box, ClaimBox)
        await self._bound(box.id)
        place, pod = await box.find_pod()
        _check_network(spec, pod)
        box.place = place
        try:
            await box.begin(spec)
            if spec.user is not None or spec.profile == "strict":
                # The agent starts even if its commands cannot become their user.
                with anyio.fail_after(self.start_timeout):
                    await box.exec(Command(("sh", "-c", ":")), _ignore)
        except (OutcomeUnknownError, TimeoutError) as error:
            raise ProviderUnavailableError(
                f"{box.id} did not answer during its start: {error or 'no response'}"
            ) from error
        except (SandboxNotFoundError, SandboxTerminatedError) as error:
            raise SandboxStartError(f"{box.id} ended before it was ready: {error}") from error
        except SandboxStartError as error:
            self.check_user(error)
            raise
        # From now on the lifetime counts, and a detached sandbox has no lease.
        if spec.lifetime is not None:
            await box.renew_claim(spec.lifetime)
        if not spec.detach:
            await box.set_timer(keep_renewed(lambda _: box.renew_claim(), int(self.options.lease)))

    def check_user(self, error: SandboxError) -> None:
        """Raise ConfigurationError if the error says that the pod's root cannot switch users."""
        if _NO_OTHER_USER.search(str(error)):
            raise ConfigurationError(
                f"kubernetes cannot honour user or profile='strict' with claims={self._pool!r}: {error}; "
                "give the container of its SandboxTemplate the capabilities CHOWN, KILL, SETGID and "
                "SETUID, or leave the option out"
            ) from error

    async def _bound(self, name: str) -> None:
        try:
            seen = await self.watch.until(name, _is_decided, seconds=self.start_timeout)
        except TimeoutError:
            last = self.watch.last(name)
            words = "it is not known" if last is None else ready_words(last.pod)
            raise ProviderUnavailableError(
                f"the claim {name!r} on the warm pool {self._pool!r} got no sandbox within "
                f"{self.start_timeout:g} s: {words}",
            ) from None
        error = failure(seen.pod)
        if error is not None:
            raise error

    _info_of = staticmethod(info_of)

    async def diagnose(self) -> Diagnosis:
        return await diagnosis(self.api, self.options, _rights.needed(claims=True), self._verified)

    async def _verified(self) -> str:
        try:
            await self.api.call("GET", ROOT, what="find the claims of agent-sandbox")
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
    return is_ready(seen.pod) or failure(seen.pod) is not None


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
