"""The kubernetes provider: creates, lists and deletes pods; the agent does the rest."""

import builtins
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, SilentError
from sandboxkit.providers._agent.frames import FAR, Windows
from sandboxkit.providers._agent.launch import config_of
from sandboxkit.providers._error_rules import no_sandbox
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.providers.kubernetes import _ends, _pod, _rights, _spec, _tags
from sandboxkit.providers.kubernetes._api import CORE, Api
from sandboxkit.providers.kubernetes._diagnosis import diagnosis
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.providers.kubernetes._instance import PodInstance
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
from sandboxkit.providers.kubernetes._pod import CONTAINER, ID_PATTERN
from sandboxkit.providers.kubernetes._policy_probe import NetworkPolicyProbe
from sandboxkit.providers.kubernetes._posting import post_once
from sandboxkit.providers.kubernetes._snapshots import PodSnapshots
from sandboxkit.providers.kubernetes._starting import Start
from sandboxkit.providers.kubernetes._storage import KEEPER, ClaimStorage
from sandboxkit.providers.kubernetes._sweep import PodSweeper
from sandboxkit.providers.kubernetes._watch import PodStatus, PodWatch
from sandboxkit.types import Diagnosis, SandboxInfo, SandboxSpec, SandboxState

_MAKER = f"{_tags.PREFIX}maker"
_GRACE = {"gracePeriodSeconds": 1, "propagationPolicy": "Background"}
_AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
_END_SECONDS = 3.0
"""How long (s) to wait for the node to report an end that the agent's stream has already shown."""
_AT_ONCE_SECONDS = 0.01
_POLLS = (0.1, 1.0)
_NOBODY_LISTENS = "connection refused"


class KubernetesProvider(PodSnapshots[PodInstance]):
    """Runs sandboxes as pods of the cluster in KUBECONFIG, or of the cluster that this pod runs in.

    The default image is SANDBOXKIT_KUBERNETES_IMAGE, or else python:3.11-slim. context, namespace,
    security, no_network, runtime_class, priority_class, queue, storage_claim, snapshot_registry, claims and
    lease default to variables with the same prefix.
    """

    name: ClassVar[str] = NAME
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
        super().__init__(PodInstance)
        # Any: Options checks a variable's value like an argument.
        security_: Any = security or variable("SECURITY") or "baseline"
        no_network_: Any = no_network or variable("NO_NETWORK")
        self._options = ClusterOptions(
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
        self._timeout, self._start_timeout = timeout, start_timeout
        self._api = Api(
            kubeconfig=kubeconfig,
            context=context or variable("CONTEXT"),
            namespace=namespace or variable("NAMESPACE"),
            timeout=timeout,
        )
        # Unique to this provider object, so that its watch gets no other owner's pods.
        self._maker = secrets.token_hex(8)
        self._watch = PodWatch(
            self._api, selector=f"{_MAKER}={self._maker}", resource=self._resource
        )
        self._parts = Parts(self._api, self._options.architecture)
        self._denial = NetworkPolicyProbe(self._api, self._create, self.exec, self.delete)
        self._creations = Creations(self.delete, provider=self.name)
        self._sweeper = PodSweeper(self._api)
        self._storage = ClaimStorage(
            self._api,
            self._options.storage_claim,
            lambda: self._create(KEEPER, keeper=True),
            self.delete,
            self.stat,
            self.list_dir,
        )

    def check(self, spec: SandboxSpec) -> None:
        _spec.check(spec, self._options)

    def waiting(self) -> builtins.list[str]:
        return [text for seen in self._watch.all() if (text := _ends.wait_of(seen))]

    async def create(self, spec: SandboxSpec) -> str:
        self.check(spec)
        spec = self._based(spec)
        self._sweeper.begin()
        if spec.network == "none" and self._options.by_policy:
            await self._denial.ensure(default_image())
        if spec.mounts:
            return await self._storage.start(spec.mounts, lambda: self._create(spec))
        return await self._create(spec)

    async def _create(self, spec: SandboxSpec, *, keeper: bool = False) -> str:
        agent = await self._parts.ensure()
        name = self._new_name()
        image = spec.image or default_image()
        snapshot = self._snapshot_image(spec)
        body = _pod.manifest(
            name, spec, self._options, image=image, agent=agent, keeper=keeper, snapshot=snapshot
        )
        return await self._made(name, body, spec)

    def _new_name(self) -> str:
        # The client chooses the name, so that a retried creation cannot make a second sandbox.
        return f"sandboxkit-{secrets.token_hex(8)}"

    # Any, here and below: pods and claims are JSON.
    async def _made(self, name: str, body: dict[str, Any], spec: SandboxSpec) -> str:
        """Create an object that is a sandbox, and own it; a failure leaves none behind."""
        body["metadata"]["labels"][_MAKER] = self._maker
        self._instance(name).is_ours = True
        self._watch.follow(name)

        async def create() -> str:
            self._watch.follow(name, await self._post(name, body))
            return name

        async def find() -> list[str]:
            try:
                self._watch.follow(name, await self._pod(name))
            except SandboxNotFoundError:
                return []
            return [name]

        try:
            await self._creations.once(create, find, left=f"a pod named {name!r}")
            async with self._creations.preparing(name):
                await self._take(name, spec)
                await self._restored(name, spec, body)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._forget(name)
            raise
        return name

    async def _path(self, name: str = "") -> str:
        """Return the path of the sandboxes' objects, or of one."""
        resource, root = self._resource
        return await self._api.path(resource, name, root=root)

    async def _post(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        return await post_once(self._api, await self._path(), body, lambda: self._pod(name))

    async def _take(self, name: str, spec: SandboxSpec) -> None:
        """Wait until the pod's agent runs, and become its owner."""
        start = Start(
            self._api,
            self._watch,
            name,
            lambda: self._exec(name),
            self._parts.restore,
            seconds=self._start_timeout,
        )
        while True:
            stream = await start.stream()
            try:
                await self._attach(name, stream, config_of(spec), lifeline=False)
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
        async for pod in self._api.pages(await self._path(), what="list sandboxes", params=params):
            info = self._info(pod)
            if info is not None and all(info.tags.get(key) == tags[key] for key in tags):
                yield info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = self._info(await self._pod(sandbox_id))
        if info is None:
            raise no_sandbox(sandbox_id)
        return info

    def _info(self, pod: Mapping[str, Any]) -> SandboxInfo | None:
        info = self._info_of(pod)
        if info is not None and info.state is SandboxState.STARTING:
            client = self._known(info.id).client
            if client is not None and client.ended is None:  # it runs; the node reports that later
                return replace(info, state=SandboxState.RUNNING)
        return info

    _info_of = staticmethod(_pod.info_of)

    async def _pod(self, sandbox_id: str) -> dict[str, Any]:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        pod: dict[str, Any] = await self._api.call(
            "GET",
            await self._path(sandbox_id),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        return pod

    async def delete(self, sandbox_id: str) -> None:
        if not ID_PATTERN.fullmatch(sandbox_id):
            return
        with anyio.CancelScope(shield=True):
            # If the API server does not answer, the lease ends a sandbox that is not detached.
            async with self._deletion(sandbox_id):
                await self._until_removed(sandbox_id)

    async def _until_removed(self, sandbox_id: str) -> None:
        """Remove a pod and return once nothing of it runs; its node removes the rest later."""
        if await self._ended(sandbox_id):
            await self._remove(sandbox_id, _AT_ONCE)
            return
        await self._until_stopped(sandbox_id, sandbox_id)

    async def _until_stopped(self, sandbox_id: str, pod: str) -> None:
        """Remove the pod of a sandbox and return once its node has reported that nothing of it runs."""
        began, pause = time.monotonic(), _POLLS[0]
        deadline = began + self._timeout
        path = await self._api.path("pods", pod)
        await self._remove(sandbox_id, _GRACE, path)
        while True:
            try:
                seen = PodStatus(await self._api.call("GET", path, what="describe a sandbox"))
            except SandboxNotFoundError:
                return
            if _pod.nothing_runs(seen.pod):
                return
            if _pod.never_started(seen.pod) and time.monotonic() > began + _END_SECONDS:
                # There is no container to stop, and the node is slow to report that.
                await self._remove(sandbox_id, _AT_ONCE, path)
                return
            if time.monotonic() > deadline:
                break
            await anyio.sleep(pause)
            pause = min(pause * 1.5, _POLLS[1])
        if _ends.is_lost(seen):
            # The node does not respond. If the agent still runs there, its lease ends it.
            await self._remove(sandbox_id, _AT_ONCE, path)
            return
        raise ProviderUnavailableError(
            f"the node of {sandbox_id!r} does not report that it has ended; see its kubelet's log"
        )

    async def _ended(self, sandbox_id: str) -> bool:
        """Ask the agent to end the sandbox, which is faster than the node; return whether it did."""
        with anyio.move_on_after(_END_SECONDS):
            try:
                known = self._known(sandbox_id)
                if known.client is None and known.is_ours:
                    return False
                client = known.client or await self._client(sandbox_id)
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

    async def _remove(self, sandbox_id: str, how: dict[str, Any], path: str = "") -> None:
        try:
            await self._api.call(
                "DELETE",
                path or await self._path(sandbox_id),
                how,
                what="remove a sandbox",
                sandbox_id=sandbox_id,
            )
        except SandboxNotFoundError:
            pass

    async def _forget(self, sandbox_id: str) -> None:
        self._watch.forget(sandbox_id)
        await super()._forget(sandbox_id)

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        pod = await self._pod(sandbox_id)
        now = datetime.now(UTC)
        longest = _pod.longest(pod, now)
        if lifetime > longest:
            raise ConfigurationError(
                f"kubernetes cannot honour lifetime={lifetime!r}: {sandbox_id!r} ends after at most "
                f"{longest:.0f} s; create sandboxes with a larger max_lifetime="
            )
        await super().renew(sandbox_id, lifetime)
        # Cleanup reads the expiry from the annotation, which would still hold the first one.
        expires = {_pod.EXPIRES: _pod.expiry(lifetime)}
        await self._api.call(
            "PATCH",
            await self._path(sandbox_id),
            {"metadata": {"annotations": expires}},
            what="note a sandbox's new lifetime",
            content_type="application/merge-patch+json",
            sandbox_id=sandbox_id,
        )

    async def _connect(self, sandbox_id: str) -> ByteStream:
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        try:
            return await self._exec(sandbox_id)
        except SandboxNotFoundError as error:
            # A restarted kubelet needs a moment before it knows its containers again.
            info = await self.get(sandbox_id)
            if info.state is SandboxState.STOPPED:
                raise no_sandbox(sandbox_id) from error
            raise ProviderUnavailableError(
                f"the node of {sandbox_id!r} does not know it yet: {error}"
            ) from error

    async def _exec(self, sandbox_id: str) -> PodExecStream:
        return await self._api.exec(sandbox_id, CONTAINER, _pod.CONNECT, sandbox_id=sandbox_id)

    def _grace(self, stream: ByteStream) -> float:
        return self._options.grace

    def _windows(self) -> Windows:
        return FAR

    async def _why_ended(self, sandbox_id: str, reason: str) -> SandboxError:
        if self._known(sandbox_id).deletions:
            reason = _ends.DELETED
        seen = self._watch.last(sandbox_id) if self._known(sandbox_id).is_ours else None
        if reason == "lifetime" and seen is not None and not _pod.has_expired(seen.pod):
            reason = ""  # so the agent was asked to end it
        events: Sequence[Any] = ()
        if not reason:
            try:
                seen = await self._final(sandbox_id, _ends.has_ended)
                reason = _pod.why_left(seen.pod)
                if reason and not _pod.has_expired(seen.pod):
                    # Perhaps a caller asked the agent to end it and is about to delete the pod.
                    seen = await self._final(sandbox_id, _pod.is_deleted)
                if _pod.is_deleted(seen):
                    reason = _ends.DELETED
            except SandboxNotFoundError:
                reason = _ends.DELETED
            except SandboxError:
                pass  # report what is known already
            if not reason:
                events = await _ends.events_of(self._api, sandbox_id)
        return _ends.end_error(seen, events, sandbox_id=sandbox_id, reason=reason)

    async def _final(self, sandbox_id: str, predicate: Callable[[PodStatus], bool]) -> PodStatus:
        """Wait for an ended pod's state to fulfil `predicate`, and return it, or the last one known."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            if self._known(sandbox_id).is_ours:
                try:
                    return await self._watch.until(sandbox_id, predicate, seconds=_END_SECONDS)
                except TimeoutError:
                    seen = self._watch.last(sandbox_id)
                    if seen is not None:
                        return seen
            seen = PodStatus(await self._pod(sandbox_id))
            if predicate(seen) or time.monotonic() > deadline:
                return seen
            await anyio.sleep(_POLLS[0])

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        return await self._storage.remove_unused(dry_run=dry_run)

    async def list_volumes(self) -> builtins.list[str]:
        return await self._storage.volumes()

    async def remove_volume(self, name: str) -> None:
        await self._storage.remove_volume(name)

    async def diagnose(self) -> Diagnosis:
        rights = _rights.needed(by_policy=self._options.by_policy)
        return await diagnosis(self._api, self._options, rights, self._verified)

    async def _verified(self) -> str:
        """Return what was found out about the cluster. Raises SandboxError for what is missing."""
        if not self._options.by_policy:
            return ""
        await self._denial.ensure(default_image())
        return "it enforces network policies"

    async def aclose(self) -> None:
        await super().aclose()
        await self._sweeper.aclose()
        try:
            await self._creations.settle()
        finally:
            await self._watch.aclose()
            await self._api.aclose()
