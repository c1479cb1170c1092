"""Whether local sandboxes can work on this machine, and what to do where they cannot."""

import os
import platform
import subprocess
import sys

import anyio.to_thread

from sandboxkit.errors import SandboxError, SandboxStartError
from sandboxkit.providers._agent import binary
from sandboxkit.providers.local import _bwrap, _cgroup
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.types import Diagnosis

__all__ = ["CGROUP_REMEDY", "diagnose", "start_error"]

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
    """What forbids user namespaces here, as something to do; "" if nothing is known to."""
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


def start_error(said: str) -> SandboxStartError:
    """The error for a sandbox whose bubblewrap ended with these words on stderr."""
    message = f"the sandbox did not start: {said}"
    if "namespace" in said or "uid map" in said or "Operation not permitted" in said:
        remedy = _namespace_remedy() or (
            "the kernel or a container around this program forbids user namespaces; inside "
            "docker run it with --security-opt seccomp=unconfined --security-opt "
            "systempaths=unconfined, or use provider='docker'"
        )
        message += f". It is never run without isolation. Remedy: {remedy}"
    return SandboxStartError(message, provider="local")


def _probe(host: HostUser) -> str:
    """Try an empty sandbox; return what bubblewrap had against it."""
    agent = str(binary.path())
    paths = [*_bwrap.own_paths(), agent]
    command = [*host.prefix(paths), str(_bwrap.find()), "--unshare-user", "--unshare-pid"]
    command += ["--unshare-net", "--unshare-ipc", "--unshare-uts", "--disable-userns"]
    command += ["--tmpfs", "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", agent, "/agent"]
    command += ["--clearenv", "--", "/agent", "-h"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    said = done.stderr.decode(errors="replace").strip()
    return said if said.startswith("bwrap:") or not said else ""


async def diagnose(host: HostUser) -> Diagnosis:
    """Look at bubblewrap, user namespaces and control groups."""
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
    uid, _ = host.owner()
    detail = f"{bwrap}; sandboxes run as uid {uid} of the host"
    detail += "" if os.geteuid() == 0 else " (yours)"
    detail += f"; control groups limit {', '.join(limits) or 'nothing'}"
    remedy = ""
    if missing:
        detail += f"; rlimits a process instead of: {', '.join(missing)}"
        remedy = f"to limit {', '.join(missing)} exactly {CGROUP_REMEDY}"
    return Diagnosis(available=True, isolation=_ISOLATION, detail=detail, remedy=remedy)
