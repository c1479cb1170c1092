"""The options of a `KubernetesProvider`: security, placement and limits of its pods."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.kubernetes._registry import ImageRepository

Security = Literal["baseline", "restricted"]
NoNetwork = Literal["interfaces", "policy"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]

_DEFAULT_IMAGE = "python:3.11-slim"
_VARIABLE = "SANDBOXKIT_KUBERNETES_"
_ARCHITECTURES = ("amd64", "arm64")
_ARCHITECTURE_LABEL = "kubernetes.io/arch"
_SHORTEST_LEASE = 8.0
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL = re.compile(
    r"([a-z0-9][a-z0-9.-]{0,251}[a-z0-9]/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?")

_OF_PODS = (
    "security",
    "no_network",
    "runtime_class",
    "priority_class",
    "queue",
    "topology_spread",
    "node_selector",
    "tolerations",
    "image_pull_secrets",
    "image_pull_policy",
    "requests",
    "gpu_resource",
    "storage_claim",
    "snapshot_registry",
    "max_lifetime",
)
"""The options that describe pods."""


# Any: a toleration is whatever Kubernetes accepts as one.
@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options for all sandboxes of a provider. Invalid values raise ConfigurationError."""

    security: Security = "baseline"
    no_network: NoNetwork | None = None
    """How network="none" is enforced; None: "interfaces" where `security` allows it, or "policy"."""
    runtime_class: str | None = None
    priority_class: str | None = None
    queue: str | None = None
    """The LocalQueue of Kueue that admits the pods; None: no queue."""
    topology_spread: str | None = None
    """The node label, such as "topology.kubernetes.io/zone", over whose values sandboxes are spread."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    image_pull_secrets: Sequence[str] = ()
    image_pull_policy: PullPolicy | None = None
    requests: Mapping[str, str] = field(default_factory=dict)
    gpu_resource: str = "nvidia.com/gpu"
    storage_claim: str | None = None
    """The PersistentVolumeClaim for datasets and volumes; None: neither can be mounted."""
    snapshot_registry: str | None = None
    """The repository of an OCI registry to which snapshots are pushed as images; None: they are not."""
    claims: str | None = None
    """The SandboxWarmPool that sandboxes are claimed from; None: a pod is made for each."""
    max_lifetime: float = 86_400.0
    lease: float = 60.0

    def __post_init__(self) -> None:
        _one_of("security", self.security, ("baseline", "restricted"))
        _one_of("no_network", self.no_network, ("interfaces", "policy", None))
        _one_of(
            "image_pull_policy", self.image_pull_policy, ("Always", "IfNotPresent", "Never", None)
        )
        _one_of(f"node_selector[{_ARCHITECTURE_LABEL!r}]", self.architecture, _ARCHITECTURES)
        if self.security == "restricted" and self.no_network == "interfaces":
            raise ConfigurationError(
                "kubernetes cannot honour no_network='interfaces' with security='restricted', which "
                "forbids NET_ADMIN: use no_network='policy', or security='baseline'"
            )
        if not self.lease >= _SHORTEST_LEASE:
            raise ConfigurationError(
                f"lease={self.lease!r}: give {_SHORTEST_LEASE:g} seconds or more"
            )
        if not 1 <= self.max_lifetime < 2**31:
            raise ConfigurationError(
                f"max_lifetime={self.max_lifetime!r}: give 1 to {2**31 - 1} seconds"
            )
        for name, value in self.requests.items():
            if not _QUANTITY.fullmatch(value):
                raise ConfigurationError(
                    f"requests[{name!r}]={value!r} is not a quantity such as '100m' or '256Mi'"
                )
        for what, value in (
            *(("image_pull_secrets", each) for each in self.image_pull_secrets),
            ("runtime_class", self.runtime_class or "none"),
            ("priority_class", self.priority_class or "none"),
            ("queue", self.queue or "none"),
            ("storage_claim", self.storage_claim or "none"),
            ("claims", self.claims or "none"),
        ):
            if not _NAME.fullmatch(value):
                raise ConfigurationError(
                    f"{what}={value!r} is not a valid name of a Kubernetes object"
                )
        if self.snapshot_registry is not None:
            ImageRepository.parse(self.snapshot_registry)
        if self.claims is not None:
            self._check_pooled(self.claims)
        if self.queue is not None and len(self.queue) > 63:
            raise ConfigurationError(f"queue={self.queue!r} has over 63 characters")
        if self.topology_spread is not None and not _LABEL.fullmatch(self.topology_spread):
            raise ConfigurationError(
                f"topology_spread={self.topology_spread!r} is not a label of nodes such as "
                "'topology.kubernetes.io/zone'"
            )

    def _check_pooled(self, pool: str) -> None:
        """Refuse what describes pods: the template of the warm pool does."""
        without = ClusterOptions()
        for option in _OF_PODS:
            if getattr(self, option) != getattr(without, option):
                raise ConfigurationError(
                    f"kubernetes cannot honour {option}={getattr(self, option)!r} with claims={pool!r}: the "
                    "template of that warm pool describes its pods; leave the option out, and change "
                    "the template"
                )

    @property
    def architecture(self) -> str:
        """The CPU architecture of the selected nodes, and so of the agent."""
        return self.node_selector.get(_ARCHITECTURE_LABEL, "amd64")

    @property
    def nodes(self) -> dict[str, str]:
        """The node selector, with the architecture added."""
        return {**self.node_selector, _ARCHITECTURE_LABEL: self.architecture}

    @property
    def grace(self) -> float:
        """Seconds of the lease for reconnecting; the agent itself counts down the other half."""
        return self.lease / 2

    @property
    def by_policy(self) -> bool:
        """Whether a NetworkPolicy enforces network="none"."""
        return (self.no_network or ("policy" if self.security == "restricted" else "")) == "policy"


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name}={value!r}: use one of {', '.join(map(repr, allowed))}")


def variable(name: str) -> str | None:
    """Return an option's environment variable; None if it is not set."""
    return os.environ.get(f"{_VARIABLE}{name}") or None


def default_image() -> str:
    """Return the image of sandboxes that name none."""
    return variable("IMAGE") or _DEFAULT_IMAGE


def seconds(name: str, given: float | None, default: float) -> float:
    """Return a number of seconds: as given, else from the option's variable, else the default."""
    if given is not None:
        return given
    text = variable(name.upper()) or str(default)
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(
            f"{_VARIABLE}{name.upper()}={text!r}: give a number of seconds"
        ) from None
