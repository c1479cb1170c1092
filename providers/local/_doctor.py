"""Checks whether local sandboxes work on this machine, and names the remedy if they do not."""

import platform
import subprocess
import sys
from collections.abc import Awaitable, Callable

import anyio.to_thread

from sandboxkit.errors import SandboxError
from sandboxkit.providers import _builders
from sandboxkit.providers._agent import binary
from sandboxkit.providers._gvisor import timed_start
from sandboxkit.providers.local import (
    _bwrap,
    _cgroup,
    _gvisor,
    _host_uid,
    _image,
    _landlock,
    _layout,
)
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._start_errors import REMEDY, ways_out
from sandboxkit.types import Diagnosis, SandboxSpec

CGROUP_REMEDY = (
    "it needs a control group of this user's own. Start the program with "
    "`systemd-run --user --scope -p Delegate=yes`, or as root (of a container with --privileged), "
    "or use provider='docker'"
)
_ISOLATION = "own user, mount, pid, net, ipc and uts namespaces, seccomp; shares the host's kernel"


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
        text = f"each sandbox runs as a uid of its own of the host, from {uids.start + 1} to "
        text += f"{uids.stop - 1}{'' if host.is_root else ' (your subordinate ids)'}"
        shared = f"with an image, a volume or a snapshot as uid {host.owner()[0]}"
        return text if host.makes_namespaces else f"{text}, or {shared}"
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
    if _landlock.chosen(SandboxSpec()).isolation == "landlock":
        return _landlock.diagnose()
    try:
        bwrap = _bwrap.find()
    except SandboxError as error:
        return Diagnosis(False, _ISOLATION, str(error), _bwrap.INSTALL_HINT)
    try:
        problem = await anyio.to_thread.run_sync(_probe, host)
    except (SandboxError, OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        problem, _, remedy = problem.partition(REMEDY)
        return Diagnosis(False, _ISOLATION, f"no sandbox starts: {problem}", remedy or ways_out())
    limits = sorted(_cgroup.available())
    missing = sorted({"memory", "pids", "cpu"} - _cgroup.available())
    detail = f"{bwrap}; {_identity(host)}; sandboxes have this machine's programs, and of Python "
    detail += f"{_layout.python_prefix()[0]}, without the packages of virtual environments"
    detail += f"; control groups limit {', '.join(limits) or 'nothing'}"
    said, remedies = _builders.diagnosis(await _image.builders())
    detail += said
    if missing:
        detail += f"; rlimits a process instead of: {', '.join(missing)}"
        remedies.insert(0, f"to limit {', '.join(missing)} exactly {CGROUP_REMEDY}")
    try:
        runsc = _gvisor.find()
    except SandboxError:
        detail += "; no gVisor"
    else:
        said, more = await timed_start(start)
        detail += f"; gVisor is {runsc}{said}"
        remedies += more
    return Diagnosis(True, _ISOLATION, detail, "; ".join(remedies))
