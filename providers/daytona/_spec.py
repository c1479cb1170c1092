"""Says what Daytona can honour of a SandboxSpec, and converts it to a request."""

import math

from daytona_api_client_async import CreateBuildInfo, CreateSandbox, Sandbox

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._rules import STRICT, UNICODE, Rule, never
from sandboxkit.types import SandboxSpec

SNAPSHOT = "snapshot:"
"""Prefix of an `image` that is a snapshot of the account."""
UNSUPPORTED = {
    "pids": "Daytona does not limit the processes of a sandbox",
    "gpu": "this provider does not support GPUs yet",
    "isolation": "Daytona decides how its sandboxes are isolated; leave the option out",
    "mounts": "Daytona's volumes cannot be mounted read-only, and files in them cannot be renamed or changed; "
    "build the data into an image, or upload it",
}
"""The fields that Daytona cannot honour, each with the reason."""
_SIZES = {"cpus": 1, "memory_mb": 1024, "disk_mb": 1024}


_NEEDS_BUILD = "give an image of a registry such as image='python:3.12'"


def _size(field: str, unit: int) -> tuple[Rule, Rule]:
    return (
        Rule(
            field,
            f"a snapshot has a fixed size; {_NEEDS_BUILD}",
            lambda spec: getattr(spec, field) is not None and _is_fixed(spec),
        ),
        Rule(
            field,
            f"use a multiple of {unit}",
            lambda spec: bool((getattr(spec, field) or 0) % unit),
        ),
    )


def _root(field: str, default: str | None) -> Rule:
    return Rule(
        field,
        f"it needs root, and programs in a snapshot run as the snapshot's user; {_NEEDS_BUILD}",
        lambda spec: getattr(spec, field) != default and _is_fixed(spec),
    )


RULES = (
    *never(UNSUPPORTED),
    *(rule for field, unit in _SIZES.items() for rule in _size(field, unit)),
    _root("profile", "standard"),
    _root("user", None),
    *STRICT,
    Rule(
        "image",
        "an image has no spaces or line breaks",
        lambda spec: any(c.isspace() or not c.isprintable() for c in spec.image or ""),
    ),
    Rule(
        "native_rules",
        "Daytona's list has names or networks, not both; give one kind, or leave native=True out",
        lambda spec: spec.native_rules is not None and all(spec.native_rules),
    ),
    *UNICODE,
)


def fits_snapshot(spec: SandboxSpec) -> bool:
    """Return whether a sandbox from a snapshot can have this spec.

    It can if the spec names no size and no user, which the snapshot determines, and no strict profile.
    """
    return not has_size(spec) and spec.user is None and spec.profile == "standard"


def has_size(spec: SandboxSpec) -> bool:
    """Whether the spec asks for a number of CPUs, a memory or a disk."""
    return any(_sizes(spec).values())


def request(
    spec: SandboxSpec, name: str, labels: dict[str, str], seconds: int, target: str | None
) -> CreateSandbox:
    """Return the creation request; `name` is the attempt's key, which Daytona gives to one sandbox."""
    image = spec.image or ""
    names, networks = spec.native_rules or ((), ())
    snapshot = image.removeprefix(SNAPSHOT) if image.startswith(SNAPSHOT) else None
    sizes = _sizes(spec) if spec.snapshot is None else {}  # a snapshot has those of its sandbox
    return CreateSandbox(
        name=name,
        snapshot=spec.snapshot or snapshot,
        build_info=CreateBuildInfo(dockerfile_content=_dockerfile(spec))
        if _is_built(spec)
        else None,
        labels=labels,
        network_block_all=spec.network == "none" and not names and not networks,
        domain_allow_list=",".join(names) or None,
        network_allow_list=",".join(networks) or None,
        target=target,
        cpu=sizes.get("cpu"),
        memory=sizes.get("memory"),
        disk=sizes.get("disk"),
        # Only the lifetime ends a sandbox, not a lack of calls. One that stops is kept until then, to
        # show that it ended by itself.
        auto_stop_interval=0,
        auto_delete_interval=-1,
        ttl_minutes=minutes(seconds),
    )


def check_size(spec: SandboxSpec, found: Sandbox) -> None:
    """Raise ConfigurationError if a sandbox from a snapshot has another size than the spec's."""
    asked = {name: size for name, size in _sizes(spec).items() if size is not None}
    given = {name: getattr(found, name) for name in asked}
    if given != asked:
        raise ConfigurationError(
            f"snapshot {spec.snapshot!r} gives each sandbox {given}, not {asked} (CPUs and GiB): take it of a "
            "sandbox of that size, or leave the size out"
        )


def allowed(found: Sandbox) -> list[str]:
    """Return the names or networks that Daytona lets a sandbox reach, as it stored them."""
    return (found.domain_allow_list or found.network_allow_list or "").split(",")


def minutes(seconds: int) -> int:
    """Return a lifetime in whole minutes, Daytona's unit, rounded up."""
    return math.ceil(seconds / 60)


def _dockerfile(spec: SandboxSpec) -> str:
    """Return the image to build. Daytona runs programs as the image's user, whatever a request says."""
    needs_root = spec.user is not None or spec.profile != "standard"
    return f"FROM {spec.image}\n" + ("USER root\n" if needs_root else "")


def _sizes(spec: SandboxSpec) -> dict[str, int | None]:
    """Return the sizes by Daytona's names, in CPUs and GiB."""
    return {
        "cpu": None if spec.cpus is None else int(spec.cpus),
        "memory": None if spec.memory_mb is None else spec.memory_mb // 1024,
        "disk": None if spec.disk_mb is None else spec.disk_mb // 1024,
    }


def _is_built(spec: SandboxSpec) -> bool:
    return spec.snapshot is None and spec.image is not None and not spec.image.startswith(SNAPSHOT)


def _is_fixed(spec: SandboxSpec) -> bool:
    """Whether a snapshot that was not taken of a sandbox determines the size and the user."""
    return spec.snapshot is None and not _is_built(spec)
