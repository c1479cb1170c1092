"""Checks whether local sandboxes work on this machine, and names the remedy if they do not."""

import platform
import subprocess
import sys
from collections.abc import Awaitable, Callable

import anyio.to_thread

from sandboxkit.errors import SandboxError, SandboxStartError
from sandboxkit.providers._agent import binary
from sandboxkit.providers._gvisor import timed_start
from sandboxkit.providers.local import _bwrap, _cgroup, _gvisor, _host_uid, _layout
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._namespaces import start_failure
from sandboxkit.types import Diagnosis, SandboxSpec

CGROUP_REMEDY = (
    "it needs a control group of this user's own. Start the program with "
    "`systemd-run --user --scope -p Delegate=yes`, or as root, or use provider='docker'"
)
_ISOLATION = "own user, mount, pid, net, ipc and uts namespaces, seccomp; shares the host's kernel"


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _namespace_remedy() -> str:
    """Return how to allow user namespaces here; "" if nothing is known to forbid them."""
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "as root: sysctl -w user.max_user_namespaces=15000"
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "as root: sysctl -w kernel.unprivileged_userns_clone=1"
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts user namespaces. As root: "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap a profile "
            "that allows userns"
        )
    return ""


def start_error(reason: str) -> SandboxStartError:
    """Return the error for a sandbox whose bubblewrap failed with this text on stderr."""
    message = f"the sandbox did not start: {reason}"
    if "namespace" in reason or "uid map" in reason or "Operation not permitted" in reason:
        remedy = _namespace_remedy() or (
            "the kernel or a container around this program forbids user namespaces; inside "
            "docker run it with --security-opt seccomp=unconfined --security-opt "
            "systempaths=unconfined, or use provider='docker'"
        )
        message += f". It is never run without isolation. Remedy: {remedy}"
    failed = start_failure(message)
    return SandboxStartError(message) if _namespace_remedy() else failed


def _probe(host: HostUser) -> str:
    """Start an empty sandbox; return bubblewrap's error text, "" if it works."""
    return _bwrap.try_empty(host.prefix([*_bwrap.own_paths(), str(binary.path())]))


def _identity(host: HostUser) -> str:
    """Describe the host uids of sandboxes, and the kernel limits that a common uid makes them share."""
    if host.is_root:
        uids = _host_uid.uids()
    else:
        sources = _layout.layout(SandboxSpec(), 1, None, None, {}, {}).sources
        uids = host.subordinate([*sources, str(binary.path()), *_bwrap.own_paths()])
    if uids is not None:
        return (
            f"each sandbox runs as a uid of its own of the host, from {uids.start + 1} to "
            f"{uids.stop - 1}"
            + ("" if host.is_root else " (your subordinate ids), or as yours with an image")
        )
    uid, _ = host.owner()
    why = f" ({host.why_shared})" if host.why_shared else ""
    return (
        f"sandboxes run as uid {uid} of the host{'' if host.is_root else ' (yours)'} and share "
        "what the kernel counts for it: descriptors in flight, queued signals, message queues, "
        f"pipe pages, inotify instances; one sandbox can use them up for all{why}"
    )


async def diagnose(host: HostUser, start: Callable[[SandboxSpec], Awaitable[None]]) -> Diagnosis:
    """Check bubblewrap, user namespaces and control groups.

    `start` starts a sandbox and deletes it: it is called if there is gVisor.
    """
    if sys.platform != "linux":
        return Diagnosis(
            available=False,
            isolation=_ISOLATION,
            detail=f"this is {platform.system()}; the local provider needs Linux",
            remedy="use provider='docker'",
        )
    try:
        bwrap = _bwrap.find()
        problem = await anyio.to_thread.run_sync(_probe, host)
    except (SandboxError, OSError, subprocess.TimeoutExpired) as error:
        return Diagnosis(False, _ISOLATION, str(error), _bwrap.INSTALL_HINT)
    if problem:
        return Diagnosis(False, _ISOLATION, str(start_error(problem)), _namespace_remedy())
    limits = sorted(_cgroup.available())
    missing = sorted({"memory", "pids", "cpu"} - _cgroup.available())
    detail = f"{bwrap}; {_identity(host)}; sandboxes have this machine's programs, and of Python "
    detail += f"{_layout.python_prefix()[0]}, without the packages of virtual environments"
    detail += f"; control groups limit {', '.join(limits) or 'nothing'}"
    remedy = ""
    if missing:
        detail += f"; rlimits a process instead of: {', '.join(missing)}"
        remedy = f"to limit {', '.join(missing)} exactly {CGROUP_REMEDY}"
    try:
        runsc = _gvisor.find()
    except SandboxError:
        detail += "; no gVisor"
    else:
        said, remedies = await timed_start(start)
        detail += f"; gVisor is {runsc}{said}"
        remedy = "; ".join([*([remedy] if remedy else []), *remedies])
    return Diagnosis(available=True, isolation=_ISOLATION, detail=detail, remedy=remedy)
