"""Converts a SandboxSpec into the manifest of a bare pod, and a pod's state into a SandboxInfo."""

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags
from sandboxkit.providers.kubernetes import _claim, _tags
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.providers.kubernetes._parts import AGENT_DIRECTORY, LOADER, AgentParts
from sandboxkit.providers.kubernetes._snapshot_image import SnapshotImage
from sandboxkit.providers.kubernetes._spec import user_of
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState

AGENT_SOCKET = "@sandboxkit-agent"
"""An abstract socket: it needs no writable root, and a hostile /tmp cannot affect it."""
CONNECT = (LOADER, "connect", AGENT_SOCKET)
"""The command that connects its stdin and stdout to a sandbox's agent."""
CONTAINER = "sandbox"
ID_PATTERN = re.compile(r"sandboxkit-[0-9a-f]{16}")
"""Only pods with such names are ever read or deleted."""
MARKER = _tags.MARKER
NETWORK = f"{_tags.PREFIX}network"
"""The label that a NetworkPolicy selects by: "none" or "internet"."""
_QUEUE = "kueue.x-k8s.io/queue-name"
EXPIRES = f"{_tags.PREFIX}expires"
"""The annotation with the time at which the lifetime ends; `renew` updates it."""

# The minimum for PID 1: it switches to the spec's user, kills that user's processes, and gives the
# user the workdir before it drops CHOWN.
_CAPABILITIES = ("CHOWN", "KILL", "SETGID", "SETUID")
_KEEPERS = ("DAC_OVERRIDE", "FOWNER")
"""To remove what any user has written to a volume; commands of a sandbox never have them."""
_MEMORY_MB = 1024
_DISK_MB = 10_240
_STRICT_DISK_MB = 512
_REQUESTS = {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "64Mi"}
_GRACE_SECONDS = 1
"""Between SIGTERM and SIGKILL; with 0 Kubernetes would not wait for the node's confirmation."""
_LOST_NODE_SECONDS = 30
_START_SECONDS = 600
_CLOCKS = 10.0
"""The clock skew (s) allowed between this machine and the one that created a pod."""
_UNIT = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}
_SHM = "/dev/shm"
_SPACE = "space-"
"""The prefix of the names of writable volumes."""
_STATES = {"Pending": SandboxState.STARTING, "Running": SandboxState.RUNNING}

# Any: manifests and the API server's responses are JSON.
Json = dict[str, Any]


def manifest(
    name: str,
    spec: SandboxSpec,
    options: ClusterOptions,
    *,
    image: str,
    agent: AgentParts,
    keeper: bool = False,
    snapshot: SnapshotImage | None = None,
) -> Json:
    """Return the pod manifest for a spec that has passed `check`.

    `keeper` mounts the whole claim instead of `spec.mounts`. `snapshot` is the image of the spec's snapshot,
    if it has one.
    """
    volumes: list[Json] = [agent.volume]
    mounts: list[Json] = [{"name": "agent", "mountPath": AGENT_DIRECTORY, "readOnly": True}]
    for number, (folder, size_mb) in enumerate(_folders(spec, options).items()):
        limit = {} if size_mb is None else {"sizeLimit": f"{size_mb}Mi"}
        volumes.append({"name": f"{_SPACE}{number}", "emptyDir": limit})
        mounts.append({"name": f"{_SPACE}{number}", "mountPath": folder})
    if all(each["mountPath"] != _SHM for each in mounts):
        memory = {"medium": "Memory", "sizeLimit": f"{spec.memory_mb or _MEMORY_MB}Mi"}
        volumes.append({"name": "shm", "emptyDir": memory})
        mounts.append({"name": "shm", "mountPath": _SHM})
    if keeper or spec.mounts:
        volumes.append(_claim.claim_volume(options.storage_claim or ""))
        mounts += _claim.mounts_of(spec.mounts, keeper=keeper)
    cut = spec.network == "none" and not options.by_policy
    security = _security(spec, options, cut=cut, keeper=keeper)
    resources = _resources(spec, options)
    before: list[Json] = []
    if snapshot is not None:
        volumes.append(snapshot.volume)
        mounts.append(snapshot.mount)
        before.append(snapshot.container(security, resources))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                **_tags.labels(spec.tags),
                NETWORK: spec.network,
                **({_QUEUE: options.queue} if options.queue else {}),
            },
            "annotations": {
                _tags.ANNOTATION: _tags.annotation(spec.tags),
                **({} if spec.lifetime is None else {EXPIRES: expiry(spec.lifetime)}),
                # The cluster autoscaler must not remove a node with sandboxes because it is idle.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "sandbox",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            **_net(spec, options),
            **_name_servers(spec),
            "nodeSelector": options.nodes,
            "tolerations": [*_LOST_NODE, *map(dict, options.tolerations)],
            **({"runtimeClassName": options.runtime_class} if options.runtime_class else {}),
            **({"priorityClassName": options.priority_class} if options.priority_class else {}),
            **_spread(options),
            "imagePullSecrets": [{"name": each} for each in options.image_pull_secrets],
            "volumes": volumes,
            **({"initContainers": before} if before else {}),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    **(
                        {"imagePullPolicy": options.image_pull_policy}
                        if options.image_pull_policy
                        else {}
                    ),
                    "command": [
                        LOADER,
                        *agent_flags(
                            spec,
                            user=user_of(spec, options),
                            listen_path=AGENT_SOCKET,
                            owner_by_socket=True,
                            lease=None if spec.detach else options.lease - options.grace,
                            no_network=cut,
                            drop_env="KUBERNETES_",
                            image_workdir=".",
                            name_user=True,
                            no_root=spec.profile == "strict" and options.security == "baseline",
                        ),
                    ],
                    **({"workingDir": "/"} if spec.workdir or spec.profile == "strict" else {}),
                    # Puts an agent's stderr into the pod's status when the agent cannot start.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": security,
                    "volumeMounts": mounts,
                    "resources": resources,
                }
            ],
        },
    }


# Evict pods from an unreachable node sooner than the default of five minutes.
_LOST_NODE = [
    {
        "key": f"node.kubernetes.io/{why}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _LOST_NODE_SECONDS,
    }
    for why in ("not-ready", "unreachable")
]


def _spread(options: ClusterOptions) -> Json:
    """Return the constraint that spreads all sandboxes of a namespace; a start never fails for it."""
    if options.topology_spread is None:
        return {}
    constraint = {
        "maxSkew": 1,
        "topologyKey": options.topology_spread,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {MARKER: "1"}},
    }
    return {"topologySpreadConstraints": [constraint]}


def _net(spec: SandboxSpec, options: ClusterOptions) -> Json:
    """Return a deadline behind the agent's own: it ends the pod even if the agent does not.

    `renew` extends the agent's deadline; Kubernetes does not let this one be extended.
    """
    if spec.lifetime is None:
        return {}
    seconds = max(spec.lifetime + _START_SECONDS, options.max_lifetime)
    return {"activeDeadlineSeconds": min(math.ceil(seconds), 2**31 - 1)}


def _name_servers(spec: SandboxSpec) -> Json:
    if spec.network == "internet":
        return {"dnsPolicy": "Default"}  # the node's DNS, which cannot resolve cluster services
    return {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}


def _security(spec: SandboxSpec, options: ClusterOptions, *, cut: bool, keeper: bool) -> Json:
    context: Json = {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": spec.profile == "strict",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if options.security == "restricted":
        uid, _, gid = (user_of(spec, options) or "").partition(":")
        ids = {"runAsUser": int(uid), "runAsGroup": int(gid or uid), "runAsNonRoot": True}
        return context | ids | {"capabilities": {"drop": ["ALL"]}}
    added = [*_CAPABILITIES, *(["NET_ADMIN"] if cut else []), *(_KEEPERS if keeper else ())]
    root = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
    return context | root | {"capabilities": {"drop": ["ALL"], "add": sorted(added)}}


def _folders(spec: SandboxSpec, options: ClusterOptions) -> dict[str, int | None]:
    """Return the writable volumes: mount path to size in MiB, or None for no limit of its own."""
    workdir = spec.workdir or DEFAULT_WORKDIR
    if spec.profile == "strict":
        folders = sorted({"/tmp", workdir})
        return dict.fromkeys(folders, (spec.disk_mb or _STRICT_DISK_MB) // len(folders))
    # Without a volume, only root could create the workdir.
    return {workdir: None} if options.security == "restricted" and workdir != "/tmp" else {}


def places(spec: SandboxSpec, options: ClusterOptions) -> list[str]:
    """Return the folders below which a sandbox can write: "/" if its root is writable, and its volumes."""
    return [*(() if spec.profile == "strict" else "/"), *_folders(spec, options)]


def places_of(pod: Mapping[str, Any]) -> list[str]:
    """Return what `places` returns for the spec of a pod."""
    container = pod["spec"]["containers"][0]
    strict = container["securityContext"].get("readOnlyRootFilesystem", False)
    found = [m["mountPath"] for m in container["volumeMounts"] if m["name"].startswith(_SPACE)]
    return [*(() if strict else "/"), *found]


def disk_mb(spec: SandboxSpec) -> int:
    """Return how many MiB a sandbox may write."""
    return spec.disk_mb or (_STRICT_DISK_MB if spec.profile == "strict" else _DISK_MB)


def _resources(spec: SandboxSpec, options: ClusterOptions) -> Json:
    limits = {
        "memory": f"{spec.memory_mb or _MEMORY_MB}Mi",
        "ephemeral-storage": f"{disk_mb(spec)}Mi",
    }
    if spec.cpus is not None:
        limits["cpu"] = f"{round(spec.cpus * 1000)}m"
    needs = {**_REQUESTS, **options.requests}
    # Kubernetes refuses a request that exceeds its limit.
    requests = {
        name: limits[name] if name in limits and _number(limits[name]) < _number(value) else value
        for name, value in needs.items()
    }
    if spec.gpu is not None:
        limits[options.gpu_resource] = requests[options.gpu_resource] = spec.gpu
    return {"limits": limits, "requests": requests}


def _number(quantity: str) -> float:
    if quantity.endswith("i"):
        return float(quantity[:-2]) * 1024.0 ** ("KMGTPE".index(quantity[-2]) + 1)
    return float(quantity[:-1]) * _UNIT[quantity[-1]] if quantity[-1] in _UNIT else float(quantity)


def info_of(pod: Mapping[str, Any], /) -> SandboxInfo | None:
    """Return the sandbox that a pod is; None if it is not a sandbox or is being deleted."""
    metadata: Mapping[str, Any] = pod["metadata"]
    if (
        not ID_PATTERN.fullmatch(metadata["name"])
        or (metadata.get("labels") or {}).get(MARKER) != "1"
        or metadata.get("deletionTimestamp")
    ):
        return None
    tags = _tags.tags_of(metadata)
    phase = (pod.get("status") or {}).get("phase", "Pending")
    return SandboxInfo(
        id=metadata["name"],
        provider=NAME,
        state=_STATES.get(phase, SandboxState.STOPPED),
        tags=tags,
        image=str(pod["spec"]["containers"][0]["image"]),
        created_at=time_of(metadata.get("creationTimestamp")),
        expires_at=expires_of(pod),
    )


def expiry(lifetime: float) -> str:
    """Return the `EXPIRES` value for a lifetime that begins now: a Unix time, never too early."""
    return f"{math.ceil(time.time() + lifetime)}"


def is_deleted(seen: PodStatus) -> bool:
    """Whether a pod has been deleted or is being deleted."""
    return seen.gone or "deletionTimestamp" in seen.pod["metadata"]


def why_left(pod: Mapping[str, Any]) -> str:
    """Return the agent's reason for ending its sandbox by itself; "" if it did not do so."""
    states = [
        each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    if [(state.get("terminated") or {}).get("exitCode") for state in states] != [0]:
        return ""
    return "lifetime" if has_expired(pod) else "its owner went away"


def has_expired(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's lifetime has ended, give or take the clock skew."""
    expires = expires_of(pod)
    return expires is not None and expires.timestamp() < time.time() + _CLOCKS


def expires_of(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the lifetime of a pod or a claim ends, according to its annotation."""
    text = (pod["metadata"].get("annotations") or {}).get(EXPIRES)
    try:
        return datetime.fromtimestamp(float(str(text)), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def finished_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the pod's last container ended; None while one may still run."""
    status = pod.get("status") or {}
    if _STATES.get(status.get("phase", "Pending")) is not None:
        return None
    ends = [
        time_of(each["state"]["terminated"].get("finishedAt"))
        for each in status.get("containerStatuses") or ()
        if "terminated" in (each.get("state") or {})
    ]
    # A pod that was evicted before any container ran has only its creation time.
    return max(filter(None, ends), default=time_of(pod["metadata"].get("creationTimestamp")))


def started_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the pod's container started, in whole seconds; None if its node has not reported it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    running = next((each.get("state", {}).get("running") for each in statuses), None)
    return time_of((running or {}).get("startedAt"))


def nothing_runs(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's node has reported that all of its containers have ended."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    ended = ["terminated" in (each.get("state") or {}) for each in containers]
    return finished_at(pod) is not None or (bool(ended) and all(ended))


def never_started(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's node has not created a container for it yet."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return not any(each.get("containerID") for each in containers)


def longest(pod: Mapping[str, Any], now: datetime) -> float:
    """Return for how many more seconds Kubernetes lets a pod run; inf without a deadline."""
    limit = pod["spec"].get("activeDeadlineSeconds")
    if limit is None:
        return math.inf
    started = time_of((pod.get("status") or {}).get("startTime")) or now
    return float(limit) - max(0.0, (now - started).total_seconds())


def time_of(text: object) -> datetime | None:
    """Return the time that an object's field names; None if it names none."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
