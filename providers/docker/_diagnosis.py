"""Describes a daemon for `doctor`: its version, its runtimes, and what it lacks."""

from collections.abc import Awaitable, Callable

from sandboxkit.errors import SandboxError
from sandboxkit.providers import _builders
from sandboxkit.providers._gvisor import timed_start
from sandboxkit.providers.docker._container import LIMITS_REMEDY
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._dockerfiles import builders
from sandboxkit.providers.docker._gvisor import Runtimes
from sandboxkit.types import Diagnosis, SandboxSpec


async def diagnosis(
    daemon: Daemon,
    runtime: str | None,
    image: str,
    present: Callable[[str], Awaitable[bool]],
    start: Callable[[SandboxSpec], Awaitable[None]],
) -> Diagnosis:
    """Return whether sandboxes can start, and if not, what to do.

    `present` tells whether the daemon has an image. `start` starts a sandbox and deletes it: it is called
    if the daemon has gVisor and the default image.
    """
    isolation = "container: own namespaces, no capability, seccomp; the kernel is shared"
    if runtime is not None:
        isolation = f"container under the runtime {runtime!r}"
    try:
        info = await daemon.info()
    except SandboxError as error:
        return Diagnosis(False, isolation, "no daemon", str(error))
    detail = f"{'Podman' if info.podman else 'Docker'} {info.version} at {daemon.endpoint.url}, {info.architecture}"
    if runtime is not None and runtime not in info.runtimes:
        return Diagnosis(
            available=False,
            isolation=isolation,
            detail=f"{detail}; its runtimes: {', '.join(info.runtimes)}",
            remedy=f"install the runtime {runtime!r} and name it in daemon.json",
        )
    remedies = []
    if not info.limits:
        detail += "; it limits nothing"
        remedies.append(f"for limits: {LIMITS_REMEDY}")
    if not any("name=seccomp" in option for option in info.security):
        detail += "; without seccomp"
        remedies.append("use a kernel and a daemon with seccomp")
    said, lacking = _builders.diagnosis(await builders(daemon))
    detail += said
    missing = not await present(image)
    if missing:
        remedies.append(
            f"the default image {image!r} will be pulled on first use; "
            "set SANDBOXKIT_DOCKER_IMAGE to use another"
        )
    gvisor = Runtimes().gvisor(info)
    if gvisor is None:
        detail += "; no gVisor"
    else:
        detail += f"; gVisor is the runtime {gvisor!r}"
        if not missing and runtime in (None, gvisor):
            said, remedy = await timed_start(start)
            detail += said
            remedies += remedy
    remedies += lacking
    return Diagnosis(available=True, isolation=isolation, detail=detail, remedy="; ".join(remedies))
