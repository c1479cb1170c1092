"""Checks a SandboxSpec: refuses each option that Kubernetes cannot honour, with a remedy."""

import re

from sandboxkit.providers import _rules
from sandboxkit.providers._rules import STRICT, UNICODE, Rule, at_least, never
from sandboxkit.providers.kubernetes import _tags
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.types import SandboxSpec

UNSUPPORTED = {
    "isolation": "in a gVisor pod the agent cannot tell who connects to it; for a virtual machine set a runtime_class",
    "pids": "a pod has no such limit; its node has: set podPidsLimit in the kubelet's configuration",
}
"""The fields that Kubernetes cannot honour, each with the reason."""
_WITHOUT_A_CLAIM = {
    "mounts": "name a PersistentVolumeClaim for datasets and volumes, in SANDBOXKIT_KUBERNETES_STORAGE_CLAIM"
}
_OF_THE_TEMPLATE = ("image", "cpus", "memory_mb", "disk_mb", "gpu", "pids", "mounts", "snapshot")
LEAST_MEMORY_MB = 32
_NOBODY = "65534"
_IDS = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_LARGEST_ID = 2**31 - 1


def rules(options: ClusterOptions) -> tuple[Rule, ...]:
    """Return the rules of a provider with these options."""
    tags = Rule(
        "tags",
        f"all tags together have at most {_tags.MAX_BYTES} bytes",
        lambda spec: len(_tags.annotation(spec.tags)) > _tags.MAX_BYTES,
        lambda spec: f"{len(spec.tags)} tags",
    )
    if options.claims is not None:
        why = f"the template of the warm pool {options.claims!r} decides this; leave it out"
        return (*never(dict.fromkeys(_OF_THE_TEMPLATE, why)), *STRICT, *UNICODE, tags)
    restricted = options.security == "restricted"
    mode = "security='restricted'" if restricted else "profile='strict'"

    def has_volume(spec: SandboxSpec) -> bool:
        return restricted or spec.profile == "strict"

    def ids(spec: SandboxSpec) -> list[int]:
        found = _IDS.fullmatch(spec.user or "") if restricted else None
        return [int(number or 0) for number in found.groups()] if found else [0]

    return (
        *never(UNSUPPORTED),
        *(() if options.storage_claim else never(_WITHOUT_A_CLAIM)),
        at_least("memory_mb", LEAST_MEMORY_MB, "the agent alone needs it"),
        at_least("cpus", 0.01),
        at_least("disk_mb", 2),
        Rule(
            "gpu",
            f"give a count of {options.gpu_resource}, such as '1'",
            lambda spec: spec.gpu is not None and not re.fullmatch("[1-9][0-9]{0,3}", spec.gpu),
        ),
        STRICT[0],
        Rule(
            "user",
            "security='restricted' needs a numeric uid other than 0",
            lambda spec: restricted and spec.user is not None and ids(spec)[0] == 0,
        ),
        Rule(
            "user",
            f"the largest uid or gid is {_LARGEST_ID}",
            lambda spec: max(ids(spec)) > _LARGEST_ID,
        ),
        Rule(
            "workdir",
            f"with {mode} it is a volume, which cannot be the root",
            lambda spec: has_volume(spec) and spec.workdir == "/",
        ),
        Rule(
            "workdir",
            f"with {mode} it is a volume, and has no colon",
            lambda spec: has_volume(spec) and ":" in (spec.workdir or ""),
        ),
        Rule(
            "command",
            "with a snapshot it would start before the files are there; start it with exec()",
            lambda spec: bool(spec.command and spec.snapshot),
        ),
        Rule(
            "mounts",
            "Kubernetes takes no mount point with a colon",
            lambda spec: any(":" in point for point in spec.mounts),
            lambda spec: ", ".join(spec.mounts),
        ),
        *UNICODE,
        tags,
    )


def check(spec: SandboxSpec, options: ClusterOptions) -> None:
    """See `Provider.check`."""
    _rules.check(spec, rules(options), provider=NAME)


def user_of(spec: SandboxSpec, options: ClusterOptions) -> str | None:
    """Return the user that commands run as; None for the agent's own user, root."""
    if spec.user is None and (spec.profile == "strict" or options.security == "restricted"):
        return _NOBODY
    return spec.user
