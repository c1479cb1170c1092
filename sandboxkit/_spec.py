"""Conversion of session and sandbox options, as callers write them, to one checked SandboxSpec."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sandboxkit._calls._foreign_names import nearest
from sandboxkit.datasets import check_mounts, split_mounts
from sandboxkit.egress import Egress
from sandboxkit.errors import ConfigurationError
from sandboxkit.options import ALL_OPTIONS
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxSpec

_MODULES = """
bisect collections copy dataclasses datetime decimal enum fractions functools heapq io itertools
json math operator os random re statistics string sys time typing
"""
PRELOAD = tuple(_MODULES.split())
"""The modules that `Session.run_python` imports by default before the code runs."""

_CHECKS = {option.name: option.check for option in ALL_OPTIONS}


# Any: the values are what the checks make of them; SpecOptions types the public signatures.
def build(base: SandboxSpec, options: Mapping[str, Any]) -> SandboxSpec:
    """Return `base` with `options` applied: tags, env and secrets are merged, all others replaced.

    Raises ConfigurationError for an unknown option, a bad value or a combination that cannot work.
    """
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _CHECKS:
            raise ConfigurationError(
                f"unknown option {name!r}{nearest(name, list(_CHECKS))}; "
                f"the options are {', '.join(_CHECKS)}"
            )
        changes[name] = _CHECKS[name](name, value)
    for name in ("tags", "env", "secrets"):
        if name in changes:
            changes[name] = {**getattr(base, name), **changes[name]}
    if "network" in changes:
        egress = changes["network"] if isinstance(changes["network"], Egress) else None
        rules = egress.native_rules if egress else None
        changes |= {
            "network": "none" if egress else changes["network"],
            "egress": None if rules else egress,
            "native_rules": rules,
        }
    spec = dataclasses.replace(base, **changes)
    if spec.detach and spec.lifetime is None:
        raise ConfigurationError(
            "detach=True needs a lifetime, such as 3600: nothing else would end the sandbox"
        )
    if spec.egress is not None and spec.command is not None:
        raise ConfigurationError(
            "network=Egress(...) cannot be combined with a command, which would start before the proxy: "
            "run it with exec()"
        )
    if spec.reuse == "reset" and spec.profile != "strict":
        raise ConfigurationError(
            f"reuse='reset' with profile={spec.profile!r}: only a sandbox with profile='strict' can be "
            "verified to be clean"
        )
    if spec.reuse == "reset" and (spec.detach or spec.command):
        raise ConfigurationError("reuse='reset' cannot be combined with detach=True or a command")
    if spec.reuse == "reset" and (volumes := split_mounts(spec.mounts)[1]):
        raise ConfigurationError(
            f"reuse='reset' cannot be combined with mounts={', '.join(volumes)}: a volume keeps what one "
            "job writes, and the next job would find it; use reuse='never'"
        )
    if spec.reuse == "reset" and spec.snapshot is not None:
        raise ConfigurationError(
            f"snapshot={spec.snapshot!r} cannot be combined with reuse='reset', which empties the writable "
            "folders: use reuse='never'"
        )
    check_mounts(spec.mounts, spec.workdir)
    return spec


def check(provider: Provider, spec: SandboxSpec) -> None:
    """Raise ConfigurationError for options that the provider cannot honour, optional features included."""
    check_abilities(type(provider), spec)
    if spec.snapshot is not None:
        provider.check_snapshot(spec, "files")
    provider.check(spec)


def check_abilities(kind: type[Provider], spec: SandboxSpec) -> None:
    """Raise ConfigurationError for an option that needs an optional feature this provider class lacks."""
    reason = None
    if spec.native_rules is not None and not kind.native_egress:
        reason = "Egress(native=True): it has no list of allowed servers of its own; leave native=True out"
    elif spec.public_ports and not kind.has("public_url"):
        reason = (
            "public_ports: it has no public addresses; sandbox.expose(port) forwards a port of this "
            "machine to it"
        )
    if reason is not None:
        raise ConfigurationError(
            f"provider {kind.name!r} cannot honour {reason}", provider=kind.name
        )
