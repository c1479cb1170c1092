"""Checks a SandboxSpec: the options that local sandboxes on this machine cannot honour."""

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _gvisor, _rules
from sandboxkit.providers._rules import STRICT, Rule, at_least, at_most, never
from sandboxkit.providers.local import _cgroup, _doctor, _landlock, _layout, _start_errors
from sandboxkit.providers.local._landlock import is_landlock
from sandboxkit.types import SandboxSpec

USERS = {
    None: "sandbox",
    "sandbox": "sandbox",
    str(_layout.SANDBOX_UID): "sandbox",
    "root": "root",
    "0": "root",
}
"""The user of a sandbox for each value of the option `user`."""


def _needs(controller: str, field: str) -> Rule:
    return Rule(
        field,
        f"it cannot be enforced here: {_doctor.CGROUP_REMEDY}",
        lambda spec: (
            getattr(spec, field) is not None
            and controller not in _cgroup.available()
            and not (is_landlock(spec) and field in ("memory_mb", "pids"))  # the agent watches them
        ),
    )


def _covered(spec: SandboxSpec) -> list[str]:
    """Return the mount points in folders of the host, where bubblewrap cannot make a folder."""
    if spec.image is not None:
        return []
    return [point for point in spec.mounts if _layout.host_folder(point)]


_MOUNTS = Rule(
    "mounts",
    "without an image these folders are this machine's own and read-only; use one such as '/data'",
    lambda spec: bool(_covered(spec)),
    lambda spec: ", ".join(_covered(spec)),
)
RULES = (
    *never({"gpu": "the local provider has no GPUs"}),
    Rule(
        "user", "the local provider has 'sandbox' and 'root'", lambda spec: spec.user not in USERS
    ),
    STRICT[0],
    *_gvisor.RULES,
    *_landlock.RULES,
    Rule(
        "isolation",
        f"gVisor's memory and threads cannot be bounded here: {_doctor.CGROUP_REMEDY}",
        lambda spec: _gvisor.is_gvisor(spec) and not {"memory", "pids"} <= _cgroup.available(),
    ),
    Rule(
        "network",
        "local sandboxes with gVisor have a loopback alone; use provider 'docker'",
        lambda spec: _gvisor.is_gvisor(spec) and spec.network != "none",
    ),
    Rule(
        "snapshot",
        "gVisor cannot write to the files of a local snapshot; use provider 'docker'",
        lambda spec: _gvisor.is_gvisor(spec) and spec.snapshot is not None,
    ),
    at_least("memory_mb", 16),
    at_least("disk_mb", 1),
    at_least("pids", 1),
    at_least("cpus", 0.01),
    at_most("cpus", 1_000_000),
    Rule(
        "detach",
        "it needs a lifetime: nothing else would end the sandbox",
        lambda spec: spec.detach and spec.lifetime is None,
    ),
    _needs("memory", "memory_mb"),
    _needs("pids", "pids"),
    _needs("cpu", "cpus"),
)


def check(spec: SandboxSpec) -> None:
    """See `Provider.check`."""
    if is_landlock(spec) and (lack := _start_errors.landlock_lacks()):
        raise ConfigurationError(f"provider 'local' cannot honour isolation='landlock': {lack}")
    _rules.check(spec, RULES, provider="local")
    if spec.snapshot is None:
        check_mounts(spec)


def check_mounts(spec: SandboxSpec) -> None:
    """Raise ConfigurationError for mounts that the sandbox's image, or the lack of one, forbids.

    The image of a spec with a snapshot is known only once the snapshot has been read.
    """
    _rules.check(spec, (_MOUNTS,), provider="local")
