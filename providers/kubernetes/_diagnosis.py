"""Describes a cluster for `doctor`: its version, missing rights, and what the rights cannot show."""

from collections.abc import Awaitable, Callable, Sequence

from sandboxkit.errors import SandboxError
from sandboxkit.providers.kubernetes import _rights
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._options import ClusterOptions
from sandboxkit.types import Diagnosis

__all__ = ["diagnosis"]


async def diagnosis(
    api: Api,
    options: ClusterOptions,
    rights: Sequence[_rights.Right],
    verify: Callable[[], Awaitable[str]],
) -> Diagnosis:
    """Return whether sandboxes can start, and if not, what to do.

    `verify` returns what else it found, or "", and raises SandboxError if something is missing.
    """
    isolation = f"pod of the level {options.security!r}; the node's kernel is shared"
    if options.runtime_class is not None:
        isolation = f"pod of the runtime class {options.runtime_class!r}"
    if options.claims is not None:
        isolation = f"pod of the warm pool {options.claims!r}, as its template describes it"
    try:
        await api.open()
        version = await api.call("GET", "/version", what="report its version")
        lacking = await _rights.missing(api, rights)
    except SandboxError as error:
        return Diagnosis(False, isolation, "no API server answers", str(error))
    detail = (
        f"Kubernetes {version.get('gitVersion', '?')} at {api.server}, namespace {api.namespace!r}"
    )
    if lacking:
        return Diagnosis(
            False,
            isolation,
            f"{detail}; these credentials may not: {', '.join(lacking)}",
            "as an administrator, with the name of these credentials for USER (docs/kubernetes.md has the "
            f"whole Role):\n{_rights.commands(lacking, api.namespace)}",
        )
    try:
        found = await verify()
    except SandboxError as error:
        missing = (
            "network='none' is not verified" if options.claims is None else "claims do not work"
        )
        return Diagnosis(False, isolation, f"{detail}; {missing}", str(error))
    return Diagnosis(True, isolation, f"{detail}; {found}" if found else detail)
