"""What of a SandboxSpec Kubernetes can honour: the rest is refused by name, with a remedy."""

import re

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.kubernetes import _tags
from sandboxkit.providers.kubernetes._errors import NAME
from sandboxkit.providers.kubernetes._options import Options
from sandboxkit.types import SandboxSpec

__all__ = ["LEAST_MEMORY_MB", "UNSUPPORTED", "check", "is_root", "user_of"]

UNSUPPORTED = {
    "pids": "a pod has no such limit; its node has: set podPidsLimit in the kubelet's configuration",
}
"""The fields that Kubernetes cannot honour, each with the reason."""
LEAST_MEMORY_MB = 32
_NOBODY = "65534"
_IDS = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_LARGEST_ID = 2**31 - 1


def check(spec: SandboxSpec, options: Options) -> None:
    """See `Provider.check`."""

    def refuse(field: str, value: object, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"kubernetes cannot honour {field}={value!r}: {why}", provider=NAME
        )

    for field, why in UNSUPPORTED.items():
        if getattr(spec, field) is not None:
            raise refuse(field, getattr(spec, field), why)
    if spec.memory_mb is not None and spec.memory_mb < LEAST_MEMORY_MB:
        raise refuse("memory_mb", spec.memory_mb, f"the agent alone needs {LEAST_MEMORY_MB}")
    if spec.cpus is not None and spec.cpus < 0.01:
        raise refuse("cpus", spec.cpus, "the least is 0.01")
    if spec.disk_mb is not None and spec.disk_mb < 2:
        raise refuse("disk_mb", spec.disk_mb, "give 2 or more")
    if spec.gpu is not None and not re.fullmatch("[1-9][0-9]{0,3}", spec.gpu):
        raise refuse("gpu", spec.gpu, f"give a count of {options.gpu_resource}, such as '1'")
    if spec.profile == "strict" and spec.user is not None and is_root(spec.user):
        raise refuse("user", spec.user, "profile='strict' runs nothing as root")
    if options.security == "restricted" and spec.user is not None:
        ids = _IDS.fullmatch(spec.user)
        if ids is None or int(ids[1]) == 0:
            raise refuse(
                "user",
                spec.user,
                "security='restricted' needs the number of a user other than root",
            )
        if max(int(number or 0) for number in ids.groups()) > _LARGEST_ID:
            raise refuse("user", spec.user, f"the largest number is {_LARGEST_ID}")
    if spec.profile == "strict" or options.security == "restricted":
        mode = "profile='strict'" if spec.profile == "strict" else "security='restricted'"
        if spec.workdir == "/":
            raise refuse("workdir", "/", f"with {mode} it is a volume, which cannot be the root")
        if spec.workdir is not None and ":" in spec.workdir:
            raise refuse("workdir", spec.workdir, f"with {mode} it is a volume, and has no colon")
    for where in ("tags", "env", "secrets"):
        for name, value in getattr(spec, where).items():
            if any("\ud800" <= character <= "\udfff" for character in name + value):
                raise refuse(where, name, "it is not Unicode text")
    if len(_tags.annotation(spec.tags)) > _tags.MAX_BYTES:
        raise refuse("tags", f"{len(spec.tags)} tags", f"all of them have {_tags.MAX_BYTES} bytes")


def is_root(user: str) -> bool:
    """Whether "name", "uid" or "name-or-uid:group" is root."""
    name = user.partition(":")[0]
    return name == "root" or (name.isdigit() and int(name) == 0)


def user_of(spec: SandboxSpec, options: Options) -> str | None:
    """Whom commands run as; None for the agent's own user, which is root."""
    if spec.user is None and (spec.profile == "strict" or options.security == "restricted"):
        return _NOBODY
    return spec.user
