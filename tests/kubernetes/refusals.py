"""Recorded refusals of API servers and states of pods, also of servers newer than the tests' cluster."""

from dataclasses import dataclass, field
from typing import Any

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from tests.emulators._answers import Row

__all__ = ["REFUSALS", "STATES", "Refused", "State", "rows"]

ALL = ("create", "get", "list", "delete", "watch", "exec")


@dataclass(frozen=True, slots=True)
class Refused:
    """One answer in the place of a success."""

    calls: tuple[str, ...]
    status: int
    reason: str
    """Kubernetes' own; "" for what is not Kubernetes' own answer."""
    message: str
    raised: type[SandboxError]
    retry_after: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """Its line in the document."""
        headers = "".join(f" `{name}: {value}`" for name, value in self.headers.items())
        answer = f"{self.status} {self.reason}".strip()
        return Row(
            self.calls, f"{answer}{headers}: `{self.message}`", self.raised, self.retry_after
        )


@dataclass(frozen=True, slots=True)
class State:
    """A pod's state when it starts, at the deadline of its start, or when it has ended."""

    when: str
    status: dict[str, Any]
    raised: type[SandboxError] | None
    words: str
    """Words that the error's text contains, with gaps."""
    out_of_memory: bool = False

    @property
    def row(self) -> Row:
        """Its line in the document."""
        answer = f"{self.words}, `out_of_memory`" if self.out_of_memory else self.words
        return Row((self.when,), answer, self.raised)


_PODS = {"kind": "pods", "name": "x"}
_FORBIDDEN = 'pods "x" is forbidden: '

REFUSALS = [
    Refused(ALL, 401, "Unauthorized", "Unauthorized", AuthenticationError),
    Refused(
        ("exec",),
        403,
        "Forbidden",
        _FORBIDDEN + 'User "u" cannot create resource "pods/exec" in API group "" in the '
        'namespace "n"',
        AuthenticationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + "exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9",
        CapacityError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + "failed quota: q: must specify limits.cpu,limits.memory",
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + "maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + "unable to validate against any pod security policy: []",
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + 'pod rejected: RuntimeClass "gvisor" not found',
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + "no PriorityClass with name high was found",
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + 'error looking up service account n/default: serviceaccount "default" not '
        "found",
        ProviderUnavailableError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + 'error looking up service account n/mine: serviceaccount "mine" not found',
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        _FORBIDDEN + "unable to create new content in namespace n because it is being terminated",
        ConfigurationError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        403,
        "Forbidden",
        'admission webhook "policy.example.com" denied the request: no latest tags',
        ConfigurationError,
    ),
    Refused(ALL, 403, "", "<html>Forbidden</html>", AuthenticationError),
    Refused(
        ("create",),
        404,
        "NotFound",
        'namespaces "n" not found',
        ConfigurationError,
        details={"kind": "namespaces", "name": "n"},
    ),
    Refused(
        ("get", "delete", "exec"),
        404,
        "NotFound",
        'pods "x" not found',
        SandboxNotFoundError,
        details=_PODS,
    ),
    Refused(ALL, 404, "", "404 page not found", ProviderUnavailableError),
    Refused(("exec",), 500, "", 'container not found ("sandbox")', SandboxNotFoundError),
    Refused(
        ("exec",),
        400,
        "BadRequest",
        "pod x does not have a host assigned",
        SandboxNotFoundError,
    ),
    Refused(
        ("exec",),
        500,
        "InternalError",
        "error dialing backend: dial tcp 10.0.0.7:10250: connect: connection refused",
        ProviderUnavailableError,
    ),
    Refused(
        ("create",),
        409,
        "AlreadyExists",
        'pods "x" already exists',
        ProviderUnavailableError,
        details=_PODS,
    ),
    Refused(
        ("create",),
        409,
        "Conflict",
        'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please '
        "apply your changes to the latest version and try again",
        ProviderUnavailableError,
    ),
    Refused(
        ("watch",), 410, "Expired", "too old resource version: 1 (9)", ProviderUnavailableError
    ),
    Refused(("create",), 422, "Invalid", 'Pod "X" is invalid: metadata.name', ConfigurationError),
    Refused(
        ALL,
        429,
        "TooManyRequests",
        "The server has received too many requests and has asked us to try again later",
        ProviderUnavailableError,
        retry_after=1,
        headers={"Retry-After": "1"},
    ),
    Refused(ALL, 500, "InternalError", "etcdserver: request timed out", ProviderUnavailableError),
    Refused(ALL, 503, "ServiceUnavailable", "apiserver is shutting down", ProviderUnavailableError),
    Refused(
        ALL,
        504,
        "Timeout",
        "Timeout: request did not complete within requested timeout",
        ProviderUnavailableError,
    ),
    Refused(ALL, 502, "", "<html>502 Bad Gateway</html>", ProviderUnavailableError),
]


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return _container(state) | {"phase": "Pending"}


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "sandbox", "image": "i", "state": state}]}


def _terminated(reason: str, code: int, **more: Any) -> dict[str, Any]:
    state = {"terminated": {"reason": reason, "exitCode": code, **more}}
    return _container(state) | {"phase": "Failed"}


def _failed(reason: str, message: str) -> dict[str, Any]:
    return {"phase": "Failed", "reason": reason, "message": message}


def _unscheduled(message: str) -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}


def _disrupted(reason: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    return {"phase": "Failed", "conditions": [condition]}


_PULL = 'failed to resolve reference "docker.io/no/such:1": '
_LOW = "The node was low on resource: "

STATES = [
    State("start", _waiting("ContainerCreating"), None, "ContainerCreating"),
    State("start", _waiting("InvalidImageName", "bad"), ImageNotFoundError, "InvalidImageName"),
    State("start", _waiting("ErrImageNeverPull", "no"), ImageNotFoundError, "ErrImageNeverPull"),
    State(
        "start",
        _waiting("ErrImagePull", _PULL + "pull access denied, repository does not exist"),
        ImageNotFoundError,
        "ErrImagePull: … pull access denied",
    ),
    State(
        "start",
        _waiting("ErrImagePull", _PULL + "dial tcp: lookup docker.io: no such host"),
        ImageNotFoundError,
        "ErrImagePull: … no such host",
    ),
    State(
        "start", _waiting("ErrImagePull", _PULL + "i/o timeout"), None, "ErrImagePull: i/o timeout"
    ),
    State(
        "deadline",
        _waiting("ErrImagePull", _PULL + "i/o timeout"),
        ProviderUnavailableError,
        "ErrImagePull: … i/o timeout",
    ),
    State(
        "start",
        _waiting("CreateContainerConfigError", 'configmap "c" not found'),
        SandboxStartError,
        "CreateContainerConfigError: configmap",
    ),
    State(
        "start",
        _waiting("CreateContainerConfigError", "failed to sync configmap cache: timed out"),
        None,
        "CreateContainerConfigError: failed to sync configmap cache",
    ),
    State(
        "start",
        _terminated("StartError", 128, message="executable file not found"),
        SandboxStartError,
        "StartError, exit status 128: executable file not found",
    ),
    State(
        "start",
        _unscheduled('0/1 nodes are available: 1 persistentvolumeclaim "c" not found.'),
        SandboxStartError,
        'Unschedulable: … persistentvolumeclaim "c" not found',
    ),
    State("start", _failed("OutOfcpu", "Node didn't have it"), CapacityError, "OutOfcpu"),
    State("start", _failed("OutOfpods", "Node didn't have it"), CapacityError, "OutOfpods"),
    State(
        "start",
        _failed("Evicted", "The node had condition: [MemoryPressure]. "),
        CapacityError,
        "Evicted: The node had condition",
    ),
    State(
        "start",
        _failed("NodeShutdown", "Pod was rejected as the node is shutting down."),
        CapacityError,
        "NodeShutdown: Pod was rejected",
    ),
    State(
        "start",
        _disrupted("PreemptionByScheduler"),
        CapacityError,
        "a pod of a higher priority preempted it",
    ),
    State(
        "deadline",
        _unscheduled("0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had taints"),
        CapacityError,
        "Unschedulable: … Insufficient cpu",
    ),
    State(
        "deadline",
        _unscheduled(
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
            "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        ),
        SandboxStartError,
        "Unschedulable: … didn't match",
    ),
    State(
        "end",
        _terminated("OOMKilled", 137, finishedAt="2026-01-01T00:00:00Z"),
        SandboxTerminatedError,
        "exceeded its memory limit",
        out_of_memory=True,
    ),
    State(
        "end",
        _terminated("OOMKilled", 1),
        SandboxTerminatedError,
        "OOMKilled, exit status 1",
    ),
    State(
        "end",
        _failed(
            "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers"
        ),
        SandboxTerminatedError,
        "Pod ephemeral local storage usage exceeds the total limit of containers",
        out_of_memory=True,
    ),
    State(
        "end",
        _failed("Evicted", 'Container sandbox exceeded its local ephemeral storage limit "1Gi". '),
        SandboxTerminatedError,
        "Container sandbox exceeded its local ephemeral storage limit",
        out_of_memory=True,
    ),
    State(
        "end",
        _failed("Evicted", 'Usage of EmptyDir volume "w" exceeds the limit "1Gi". '),
        SandboxTerminatedError,
        "Usage of EmptyDir volume",
        out_of_memory=True,
    ),
    State(
        "end",
        _failed(
            "Evicted", _LOW + "memory. Container sandbox was using 9Gi, which exceeds its request"
        ),
        SandboxTerminatedError,
        _LOW + "memory",
    ),
    State(
        "end",
        _failed("Evicted", _LOW + "ephemeral-storage. Container sandbox was using 9Gi"),
        SandboxTerminatedError,
        _LOW + "ephemeral-storage",
    ),
    State(
        "end",
        _failed("DeadlineExceeded", "Pod was active on the node longer than the deadline"),
        SandboxTerminatedError,
        "its longest lifetime is over",
    ),
    State(
        "end",
        _failed("Shutdown", "Node is shutting, evicting pods"),
        SandboxTerminatedError,
        "Node is shutting",
    ),
    State(
        "end",
        _disrupted("PreemptionByScheduler"),
        SandboxTerminatedError,
        "a pod of a higher priority preempted it",
    ),
    State(
        "end",
        _disrupted("DeletionByTaintManager"),
        SandboxTerminatedError,
        "its node was lost or drained",
    ),
    State("end", _disrupted("EvictionByEvictionAPI"), SandboxTerminatedError, "it was evicted"),
    State("end", _disrupted("DeletionByPodGC"), SandboxTerminatedError, "its node was removed"),
]


def rows() -> list[Row]:
    """The lines of the document."""
    return [*(each.row for each in REFUSALS), *(each.row for each in STATES)]
