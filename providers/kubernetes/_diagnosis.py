"""Describes a cluster for `doctor`: its version, missing rights, what it refuses, and other findings."""

from collections.abc import Awaitable, Callable, Sequence

from sandboxkit.errors import SandboxError
from sandboxkit.providers.kubernetes import _pod, _rights
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._options import ClusterOptions, default_image
from sandboxkit.providers.kubernetes._parts import AgentParts
from sandboxkit.types import Diagnosis, SandboxSpec


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
    missing = "the pod of a sandbox is refused"
    try:
        if options.claims is None:
            await _check_admission(api, options)
        missing = (
            "network='none' is not verified" if options.claims is None else "claims do not work"
        )
        found = await verify()
    except SandboxError as error:
        return Diagnosis(False, isolation, f"{detail}; {missing}", str(error))
    return Diagnosis(True, isolation, f"{detail}; {found}" if found else detail)


async def _check_admission(api: Api, options: ClusterOptions) -> None:
    """Let the server check a default sandbox's pod without making it.

    Raises what a start would raise: for a runtime or priority class that is missing, a PodSecurity level,
    a policy, a quota.
    """
    agent = AgentParts("check", [{"loader": b""}])
    name = f"sandboxkit-{'0' * 16}"
    body = _pod.manifest(name, SandboxSpec(), options, image=default_image(), agent=agent)
    path = await api.path("pods")
    try:
        await api.call("POST", path, body, what="make a sandbox", params={"dryRun": "All"})
    except SandboxError as error:
        if "does not support dry run" not in str(error):  # an admission webhook of an older kind
            raise
