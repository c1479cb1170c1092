"""The kubernetes provider: creates, lists, deletes and sweeps pods; the agent does the rest."""

import asyncio
import builtins
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import (
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
)
from sandboxkit.provider import Box, FirstCommand, no_sandbox
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.box import AgentBox
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, SilentError
from sandboxkit.providers._agent.frames import FAR, Windows
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers.kubernetes import _ends, _pod, _rights, _spec, _tags
from sandboxkit.providers.kubernetes._api import CORE, Api
from sandboxkit.providers.kubernetes._diagnosis import diagnosis
from sandboxkit.providers.kubernetes._errors import NAME, refusal_of
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._options import (
    ClusterOptions,
    NoNetwork,
    PullPolicy,
    Security,
    default_image,
    seconds,
    variable,
)
from sandboxkit.providers.kubernetes._parts import Parts
from sandboxkit.providers.kubernetes._pod import CONTAINER, ID_PATTERN, finished_at
from sandboxkit.providers.kubernetes._policy_probe import NetworkPolicyProbe
from sandboxkit.providers.kubernetes._snapshots import PodSnapshots
from sandboxkit.providers.kubernetes._starting import Start
from sandboxkit.providers.kubernetes._storage import KEEPER, ClaimStorage
from sandboxkit.providers.kubernetes._watch import PodStatus, PodWatch
from sandboxkit.types import (
    Diagnosis,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    SnapshotRequest,
)

# Any: manifests are JSON.
Json = dict[str, Any]

_MAKER = f"{_tags.PREFIX}maker"
_GRACE = {"gracePeriodSeconds": 1, "propagationPolicy": "Background"}
_AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
_END_SECONDS = 3.0
"""How long (s) to wait for the node to report an end that the agent's stream has already shown."""
_AT_ONCE_SECONDS = 0.01
_POLLS = (0.1, 1.0)
_NOBODY_LISTENS = "connection refused"
_AGAIN_WITHIN = 2.0
"""A creation is retried only if its call failed within these seconds, so not after a time-out."""
_EVERY = 300.0
_KEPT = 300.0
"""Seconds for which a finished pod is kept, so that its end can be explained. Nothing runs in it, so
a jump of the wall clock loses only that explanation."""
_FINISHED = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"


class PodBox(AgentBox):
    """One pod."""

    def __init__(self, provider: "KubernetesProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.backend = provider

    async def info(self) -> SandboxInfo:
        info = self.backend.described(await self.pod())
        if info is None:
            raise no_sandbox(self.id)
        return info

    async def pod(self) -> dict[str, Any]:
        """Return the pod, or the claim, that the sandbox is. Raises SandboxNotFoundError."""
        if not ID_PATTERN.fullmatch(self.id):
            raise no_sandbox(self.id)
        pod: dict[str, Any] = await self.backend.api.call(
            "GET",
            await self.backend.path(self.id),
            what="describe a sandbox",
            sandbox_id=self.id,
        )
        return pod

    async def delete(self) -> None:
        if not ID_PATTERN.fullmatch(self.id):
            return
        with anyio.CancelScope(shield=True):
            # If the API server does not answer, the lease ends a sandbox that is not detached.
            async with self.deletion():
                await self._until_removed()

    async def _until_removed(self) -> None:
        """Remove a pod and return once nothing of it runs; its node removes the rest later."""
        if await self._ended():
            await self._remove(_AT_ONCE)
            return
        await self._until_stopped(self.id)

    async def _until_stopped(self, pod: str) -> None:
        """Remove the pod of a sandbox and return once its node has reported that nothing of it runs."""
        began, pause = time.monotonic(), _POLLS[0]
        deadline = began + self.backend.timeout
        path = await self.backend.api.path("pods", pod)
        await self._remove(_GRACE, path)
        while True:
            try:
                seen = PodStatus(
                    await self.backend.api.call("GET", path, what="describe a sandbox")
                )
            except SandboxNotFoundError:
                return
            if _pod.nothing_runs(seen.pod):
                return
            if _pod.never_started(seen.pod) and time.monotonic() > began + _END_SECONDS:
                # There is no container to stop, and the node is slow to report that.
                await self._remove(_AT_ONCE, path)
                return
            if time.monotonic() > deadline:
                break
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _POLLS[1])
        if _ends.is_lost(seen):
            # The node does not respond. If the agent still runs there, its lease ends it.
            await self._remove(_AT_ONCE, path)
            return
        raise ProviderUnavailableError(
            f"the node of {self.id!r} does not report that it has ended; see its kubelet's log"
        )

    async def _ended(self) -> bool:
        """Ask the agent to end the sandbox, which is faster than the node; return whether it did."""
        with anyio.move_on_after(_END_SECONDS):
            try:
                if self.client is None and self.is_ours:
                    return False
                client = self.client or await self._client()
                try:
                    await requests.renew(client, _AT_ONCE_SECONDS)
                except (ConnectionEndedError, CallError, SilentError):
                    pass
                for _ in range(round(_END_SECONDS / _AT_ONCE_SECONDS)):
                    if client.ended is not None:
                        return client.ended != ""
                    await anyio.sleep(_AT_ONCE_SECONDS)
            except SandboxError:
                pass
        return False

    async def _remove(self, how: dict[str, Any], path: str = "") -> None:
        try:
            await self.backend.api.call(
                "DELETE",
                path or await self.backend.path(self.id),
                how,
                what="remove a sandbox",
                sandbox_id=self.id,
            )
        except SandboxNotFoundError:
            pass

    async def forget(self) -> None:
        self.backend.watch.forget(self.id)
        await super().forget()

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotInfo:
        return await self.backend.take_snapshot_of(self, await self.pod(), request)

    async def renew(self, lifetime: float) -> None:
        pod = await self.pod()
        now = datetime.now(UTC)
        longest = _pod.longest(pod, now)
        if lifetime > longest:
            raise ConfigurationError(
                f"kubernetes cannot honour lifetime={lifetime!r}: {self.id!r} ends after at most "
                f"{longest:.0f} s; create sandboxes with a larger max_lifetime="
            )
        await super().renew(lifetime)
        # Cleanup reads the expiry from the annotation, which would still hold the first one.
        expires = {_pod.EXPIRES: _pod.expiry(lifetime)}
        await self.backend.api.call(
            "PATCH",
            await self.backend.path(self.id),
            {"metadata": {"annotations": expires}},
            what="note a sandbox's new lifetime",
            content_type="application/merge-patch+json",
            sandbox_id=self.id,
        )

    async def _connect(self) -> ByteStream:
        if not ID_PATTERN.fullmatch(self.id):
            raise no_sandbox(self.id)
        try:
            return await self.reach()
        except SandboxNotFoundError as error:
            # A restarted kubelet needs a moment before it knows its containers again.
            info = await self.info()
            if info.state is SandboxState.STOPPED:
                raise no_sandbox(self.id) from error
            raise ProviderUnavailableError(
                f"the node of {self.id!r} does not know it yet: {error}"
            ) from error

    async def reach(self) -> PodExecStream:
        """Start the agent's program that connects to it."""
        return await self.backend.api.exec(self.id, CONTAINER, _pod.CONNECT, sandbox_id=self.id)

    def _grace(self, stream: ByteStream) -> float:
        return self.backend.options.grace

    def _windows(self) -> Windows:
        return FAR

    async def _why_ended(self, reason: str) -> SandboxError:
        if self.deletions:
            reason = _ends.DELETED
        seen = self.backend.watch.last(self.id) if self.is_ours else None
        if reason == "lifetime" and seen is not None and not _pod.has_expired(seen.pod):
            reason = ""  # so the agent was asked to end it
        events: Sequence[Any] = ()
        if not reason:
            try:
                seen = await self._final(_ends.has_ended)
                reason = _pod.why_left(seen.pod)
                if reason and not _pod.has_expired(seen.pod):
                    # Perhaps a caller asked the agent to end it and is about to delete the pod.
                    seen = await self._final(_pod.is_deleted)
                if _pod.is_deleted(seen):
                    reason = _ends.DELETED
            except SandboxNotFoundError:
                reason = _ends.DELETED
            except SandboxError:
                pass  # report what is known already
            if not reason:
                events = await _ends.events_of(self.backend.api, self.id)
        return _ends.end_error(seen, events, sandbox_id=self.id, reason=reason)

    async def _final(self, predicate: Callable[[PodStatus], bool]) -> PodStatus:
        """Wait for an ended pod's state to fulfil `predicate`, and return it, or the last one known."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            if self.is_ours:
                try:
                    return await self.backend.watch.until(self.id, predicate, seconds=_END_SECONDS)
                except TimeoutError:
                    seen = self.backend.watch.last(self.id)
                    if seen is not None:
                        return seen
            seen = PodStatus(await self.pod())
            if predicate(seen) or time.monotonic() > deadline:
                return seen
            await anyio.sleep(_POLLS[0])


class KubernetesProvider(PodSnapshots[PodBox]):
    """Runs sandboxes as pods of the cluster in KUBECONFIG, or of the cluster that this pod runs in.

    The default image is SANDBOXKIT_KUBERNETES_IMAGE, or else python:3.11-slim. context, namespace,
    security, no_network, runtime_class, priority_class, queue, storage_claim, snapshot_registry, claims and
    lease default to variables with the same prefix.
    """

    name: ClassVar[str] = NAME
    box_type: ClassVar[type[Box]] = PodBox
    _resource: ClassVar[tuple[str, str]] = ("pods", CORE)
    """The kind of object that is a sandbox, and the root of its paths."""
    _pooled: ClassVar["type[KubernetesProvider]"]
    """The class with which `claims` takes sandboxes from a warm pool; its module sets this."""

    # Like pathlib.Path: the options decide the class.
    def __new__(cls, *, claims: str | None = None, **_: object) -> Self:
        kind: type[Any] = cls  # Any: the subclass is not known to be Self
        if cls is KubernetesProvider and (claims or variable("CLAIMS")):
            kind = cls._pooled
        made: Self = super().__new__(kind)
        return made

    # Any: a toleration is whatever Kubernetes accepts as one.
    def __init__(
        self,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        security: Security | None = None,
        no_network: NoNetwork | None = None,
        runtime_class: str | None = None,
        priority_class: str | None = None,
        queue: str | None = None,
        topology_spread: str | None = None,
        node_selector: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
        image_pull_secrets: Sequence[str] = (),
        image_pull_policy: PullPolicy | None = None,
        requests: Mapping[str, str] | None = None,
        gpu_resource: str = "nvidia.com/gpu",
        storage_claim: str | None = None,
        snapshot_registry: str | None = None,
        claims: str | None = None,
        lease: float | None = None,
        max_lifetime: float = 86_400.0,
        timeout: float = 30.0,
        start_timeout: float = 300.0,
    ) -> None:
        """`security` is the Pod Security level: with "baseline" the agent runs as root and commands
        as any user, with "restricted" both run as one user. `no_network` is how network="none" is
        enforced: with "interfaces" the agent removes them, for which the pod gets NET_ADMIN, more
        than baseline allows; with "policy" a NetworkPolicy denies all traffic, once a test has shown
        that the cluster enforces it. `requests` is what the scheduler reserves, such as
        {"cpu": "500m"}. `queue` is a LocalQueue of Kueue, which admits the pods: `start_timeout` has to
        cover the wait for it. `topology_spread` is the node label over whose values sandboxes are spread
        where that is possible. `storage_claim` is a PersistentVolumeClaim in which datasets and volumes are
        kept, with ReadWriteMany where sandboxes run on several nodes. `snapshot_registry` is a repository of
        an OCI registry, such as "registry.example:5000/sandboxkit": snapshots are pushed to it, and nodes
        pull them. `claims` is a SandboxWarmPool of agent-sandbox: sandboxes are claims on it, and its
        template decides what else describes a pod. A
        sandbox ends `lease` seconds after its owner is gone (default 60, with `claims` 300); a broken
        connection has half of them to reconnect. Renewals extend no sandbox beyond its first lifetime or
        `max_lifetime`, whichever is longer; with `claims` there is no such limit. `timeout` limits each
        response of the API server, `start_timeout` the whole start, both in seconds."""
        super().__init__()
        # Any: Options checks a variable's value like an argument.
        security_: Any = security or variable("SECURITY") or "baseline"
        no_network_: Any = no_network or variable("NO_NETWORK")
        self.options = ClusterOptions(
            security=security_,
            no_network=no_network_,
            runtime_class=runtime_class or variable("RUNTIME_CLASS"),
            priority_class=priority_class or variable("PRIORITY_CLASS"),
            queue=queue or variable("QUEUE"),
            topology_spread=topology_spread,
            node_selector=dict(node_selector or {}),
            tolerations=tuple(tolerations),
            image_pull_secrets=tuple(image_pull_secrets),
            image_pull_policy=image_pull_policy,
            requests=dict(requests or {}),
            gpu_resource=gpu_resource,
            storage_claim=storage_claim or variable("STORAGE_CLAIM"),
            snapshot_registry=snapshot_registry or variable("SNAPSHOT_REGISTRY"),
            claims=(claims := claims or variable("CLAIMS")),
            max_lifetime=max_lifetime,
            lease=seconds("lease", lease, 300.0 if claims else 60.0),
        )
        self.timeout, self.start_timeout = timeout, start_timeout
        self.api = Api(
            kubeconfig=kubeconfig,
            context=context or variable("CONTEXT"),
            namespace=namespace or variable("NAMESPACE"),
            timeout=timeout,
        )
        # Unique to this provider object, so that its watch gets no other owner's pods.
        self._maker = secrets.token_hex(8)
        self.watch = PodWatch(self.api, selector=f"{_MAKER}={self._maker}", resource=self._resource)
        self._parts = Parts(self.api, self.options.architecture)
        self._denial = NetworkPolicyProbe(self.api, self._create)
        self._creations = Creations(provider=self.name)
        self._sweeper = PodSweeper(self.api)
        self._storage = ClaimStorage(
            self.api,
            self.options.storage_claim,
            lambda: self._create(KEEPER, keeper=True),
        )

    def check(self, spec: SandboxSpec) -> None:
        _spec.check(spec, self.options)

    def waiting(self) -> builtins.list[str]:
        return [text for seen in self.watch.all() if (text := _ends.wait_of(seen))]

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> PodBox:
        self.check(spec)
        spec = self._based(spec)
        self._sweeper.begin()
        if spec.network == "none" and self.options.by_policy:
            await self._denial.ensure(default_image())
        if spec.mounts:
            return await self._storage.start(spec.mounts, lambda: self._create(spec))
        return await self._create(spec)

    async def _create(self, spec: SandboxSpec, *, keeper: bool = False) -> PodBox:
        agent = await self._parts.ensure()
        name = self._new_name()
        image = spec.image or default_image()
        snapshot = self._snapshot_image(spec)
        body = _pod.manifest(
            name, spec, self.options, image=image, agent=agent, keeper=keeper, snapshot=snapshot
        )
        return await self._made(name, body, spec)

    def _new_name(self) -> str:
        # The client chooses the name, so that a retried creation cannot make a second sandbox.
        return f"sandboxkit-{secrets.token_hex(8)}"

    # Any, here and below: pods and claims are JSON.
    async def _made(self, name: str, body: dict[str, Any], spec: SandboxSpec) -> PodBox:
        """Create an object that is a sandbox, and own it; a failure leaves none behind."""
        body["metadata"]["labels"][_MAKER] = self._maker
        box = self.box(name)
        box.is_ours = True
        self.keep(box)
        self.watch.follow(name)

        async def create() -> PodBox:
            self.watch.follow(name, await self._post(box, body))
            return box

        async def find() -> Sequence[PodBox]:
            try:
                self.watch.follow(name, await box.pod())
            except SandboxNotFoundError:
                return []
            return [box]

        try:
            await self._creations.once(create, find, left=f"a pod named {name!r}")
            async with self._creations.preparing(box):
                await self._take(box, spec)
                await self._restored(box, spec, body)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await box.forget()
            raise
        return box

    async def path(self, name: str = "") -> str:
        """Return the path of the sandboxes' objects, or of one."""
        resource, root = self._resource
        return await self.api.path(resource, name, root=root)

    async def _post(self, box: PodBox, body: dict[str, Any]) -> dict[str, Any]:
        return await post_once(self.api, await self.path(), body, box.pod)

    async def _take(self, box: PodBox, spec: SandboxSpec) -> None:
        """Wait until the pod's agent runs, and become its owner."""
        start = Start(
            self.api,
            self.watch,
            box.id,
            box.reach,
            self._parts.restore,
            seconds=self.start_timeout,
        )
        while True:
            stream = await start.stream()
            try:
                await box.attach(stream, config_of(spec), lifeline=False)
                return
            except SandboxStartError as error:
                # "connection refused": the agent was started just now and does not listen yet.
                if _NOBODY_LISTENS not in stream.diagnostics or start.is_late:
                    cause = error.__cause__
                    refused = isinstance(cause, ConnectionEndedError) and cause.reason != ""
                    raise await start.explain(error, refused=refused) from error
            await anyio.sleep(_POLLS[0])

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        params = {"labelSelector": _tags.selector(tags)}
        async for pod in self.api.pages(await self.path(), what="list sandboxes", params=params):
            info = self.described(pod)
            if info is not None and all(info.tags.get(key) == tags[key] for key in tags):
                yield info

    def described(self, pod: Mapping[str, Any]) -> SandboxInfo | None:
        """Return the description of a pod that is a sandbox; None for another."""
        info = self._info_of(pod)
        if info is not None and info.state is SandboxState.STARTING:
            client = self.box(info.id).client
            if client is not None and client.ended is None:  # it runs; the node reports that later
                return replace(info, state=SandboxState.RUNNING)
        return info

    _info_of = staticmethod(_pod.info_of)

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        return await self._storage.remove_unused(dry_run=dry_run)

    async def list_volumes(self) -> builtins.list[str]:
        return await self._storage.volumes()

    async def remove_volume(self, name: str) -> None:
        await self._storage.remove_volume(name)

    async def diagnose(self) -> Diagnosis:
        rights = _rights.needed(by_policy=self.options.by_policy)
        return await diagnosis(self.api, self.options, rights, self._verified)

    async def _verified(self) -> str:
        """Return what was found out about the cluster. Raises SandboxError for what is missing."""
        if not self.options.by_policy:
            return ""
        await self._denial.ensure(default_image())
        return "it enforces network policies"

    async def aclose(self) -> None:
        await super().aclose()
        await self._sweeper.aclose()
        try:
            await self._creations.settle()
        finally:
            await self.watch.aclose()
            await self.api.aclose()


async def post_once(api: Api, path: str, body: Json, find: Callable[[], Awaitable[Json]]) -> Json:
    """Create an object for a sandbox; `find` returns the one with its name, if that exists already.

    Raises AmbiguousError if the object may or may not have been created.
    """
    name = body["metadata"]["name"]
    began = time.monotonic()
    asked = False
    while True:
        try:
            made: Json = await api.call(
                "POST", path, body, what="create a sandbox", sandbox_id=name
            )
            return made
        except SandboxError as error:
            refusal = refusal_of(error)
            if asked and refusal is not None and refusal.reason == "AlreadyExists":
                return await find()
            if refusal is not None and refusal.status < 500:
                raise
            if not isinstance(error, ProviderUnavailableError):
                raise
            if asked or time.monotonic() - began > _AGAIN_WITHIN:
                raise AmbiguousError(str(error), sandbox_id=name) from error
            asked = True


class PodSweeper:
    """Removes pods of sandboxes that ended by themselves, whichever process created them."""

    def __init__(self, api: Api, *, every: float = _EVERY, kept: float = _KEPT) -> None:
        self.api, self._every, self._kept = api, every, kept
        self._last: float | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a sweep in the background, unless one runs or the last one was recent."""
        now = time.monotonic()
        if self._task is None and (self._last is None or now - self._last >= self._every):
            self._last = now
            self._task = asyncio.create_task(self._sweep())
            self._task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled():
            task.exception()

    async def _sweep(self) -> None:
        try:
            await self.sweep()
        except SandboxError:
            pass  # creations report the same error, and a later sweep tries again

    async def sweep(self) -> int:
        """Remove the pods that ended long enough ago; return how many were removed."""
        pods = await self.api.path("pods")
        params = {"labelSelector": _tags.selector({}), "fieldSelector": _FINISHED}
        removed = 0
        async for pod in self.api.pages(pods, what="list finished sandboxes", params=params):
            name, ended = pod["metadata"]["name"], finished_at(pod)
            if ended is None or not ID_PATTERN.fullmatch(name):
                continue
            if (datetime.now(UTC) - ended).total_seconds() < self._kept:
                continue
            # The uid protects a newer pod with the same name.
            body = {"preconditions": {"uid": pod["metadata"]["uid"]}}
            try:
                await self.api.call(
                    "DELETE", f"{pods}/{name}", body, what="remove a finished sandbox"
                )
                removed += 1
            except SandboxError:
                continue  # somebody else removed it
        return removed

    async def aclose(self) -> None:
        """Cancel a running sweep. Idempotent."""
        task = self._task
        if task is not None:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
