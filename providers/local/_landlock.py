"""Landlock in the place of namespaces: what a sandbox's processes may do, for the agent to enforce on them."""

import errno
import json
import os
import resource
import stat
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

from sandboxkit.errors import ConfigurationError, SandboxTerminatedError
from sandboxkit.providers._capabilities import lacking
from sandboxkit.providers._rules import Rule
from sandboxkit.providers.local import _cgroup, _host_uid, _layout, _seccomp, _start_errors
from sandboxkit.types import Diagnosis, SandboxSpec

LEVELS = ("namespaces", "landlock", "gvisor")
LISTENER = 3
"""The descriptor of the agent's listening socket."""
_READ = (
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/proc",
    "/sys/devices/system/cpu",
    "/dev/random",
    "/dev/urandom",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
_AGENT_DEVICES = ("/dev/ptmx", "/dev/pts")
_SPARE = 16_384
"""Processes beyond those of the machine that the owner's uid may have: half of what the smallest machines number.

A smaller limit would be reached by the owner's other sandboxes, and fail programs that did nothing wrong.
"""
_OUT_OF_MEMORY, _TOO_MANY = "out of memory", "too many processes"
"""The agent's reasons for the end of a sandbox that has taken too much."""


def is_landlock(spec: SandboxSpec) -> bool:
    """Return whether a sandbox has Landlock for its isolation."""
    return spec.isolation == "landlock"


def chosen(spec: SandboxSpec) -> SandboxSpec:
    """Return a spec with the isolation that it or the environment names; None stands for namespaces.

    Raises ConfigurationError if the environment names none that there is.
    """
    level = spec.isolation or os.environ.get(_start_errors.VARIABLE) or "namespaces"
    if level not in LEVELS:
        raise ConfigurationError(
            f"{_start_errors.VARIABLE}={level!r} is none of {', '.join(LEVELS)}"
        )
    if level == "namespaces":
        return replace(spec, isolation=None)
    return replace(spec, isolation="gvisor" if level == "gvisor" else "landlock")


def lend() -> _host_uid.LeasedUid | None:
    """Lease a uid for a sandbox.

    None if this process may set none, or Python is where only its own uid can read it: then the sandbox has that.
    """
    found = _host_uid.uids()
    if found is None or lacking(*_host_uid.NEEDED) or not _python_is_readable():
        return None
    return _host_uid.lend(found)


def _python_is_readable() -> bool:
    python = Path(_layout.python_prefix()[0])
    return all(each.stat().st_mode & stat.S_IXOTH for each in (python, *python.parents))


def _filters(*, own_uid: bool) -> list[bytes]:
    """Return the filters of system calls: the pinned list, and what Landlock leaves open.

    A datagram socket of a pair could send to any Unix socket of the machine. In calls that take a pid 0 is the caller.
    """
    rules = json.loads(Path(__file__).with_name("landlock.json").read_bytes())
    calls = rules["always"] + ([] if own_uid else rules["owners_uid"])
    more = {"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": errno.EPERM, "syscalls": calls}
    return [_seccomp.program(), _seccomp.program(json.dumps(more))]


def limits(spec: SandboxSpec) -> dict[int, int]:
    """Return the limits of each process of a sandbox, which is watched as well, where no control group limits it."""
    if "memory" in _cgroup.available():
        return {}
    return {resource.RLIMIT_DATA: (spec.memory_mb or _layout.MEMORY_MB) << 20}


def config(spec: SandboxSpec, work: Path, *, pids: int, own_uid: bool) -> bytes:
    """Return what the agent's supervisor reads: what the processes of the sandbox in `work` may do."""
    watched = not own_uid and "pids" not in _cgroup.available()
    # Of the owner's uid the kernel counts all processes, and of root's it limits none: see docs/security.md.
    most = pids if own_uid else _tasks() + _SPARE
    content = {
        "CommandLimits": [(resource.RLIMIT_NPROC, most)] if own_uid or watched else [],
        "Read": [*_layout.system()[1], *_READ],
        "Write": [str(work / name) for name in ("workspace", "tmp")],
        "Devices": _DEVICES,
        "AgentDevices": _AGENT_DEVICES,
        "Filters": [b64encode(each).decode() for each in _filters(own_uid=own_uid)],
        "Asks": not own_uid,
        "Workdir": str(work / "workspace"),
        "Memory": limits(spec).get(resource.RLIMIT_DATA, 0),
        "Processes": pids if watched else 0,
    }
    return json.dumps(content).encode()


def _tasks() -> int:
    """Return how many tasks this machine has."""
    return int(Path("/proc/loadavg").read_text().split("/")[1].split()[0])


def diagnose() -> Diagnosis:
    """Say whether and how sandboxes with Landlock work here."""
    isolation = "Landlock and seccomp on processes of this machine; shares its kernel, process list and loopback"
    if lack := _start_errors.landlock_lacks():
        return Diagnosis(
            False, isolation, lack, f"unset {_start_errors.VARIABLE}, or use provider='docker'"
        )
    lent = lend()
    uids = "their own uids"
    if lent is None:
        uids = f"the uid {os.geteuid()}, which is yours"
    else:
        lent.give_back()
    return Diagnosis(
        True, isolation, f"chosen by {_start_errors.VARIABLE}; sandboxes have {uids} on the host"
    )


def environment(work: Path) -> dict[str, str]:
    """Return the variables of the agent, which commands inherit."""
    own = {"HOME": f"{work}/workspace", "TMPDIR": f"{work}/tmp"}
    own["GIT_CONFIG_NOSYSTEM"] = "1"  # git ends if it may not read a file that is there
    return {**own, "PATH": _layout.search_path(None), "LANG": "C.UTF-8"}


def why_ended(sandbox_id: str, reason: str) -> SandboxTerminatedError | None:
    """Return the error for a sandbox that the agent ended because of its programs; None for another reason."""
    if reason not in (_OUT_OF_MEMORY, _TOO_MANY):
        return None
    memory = reason == _OUT_OF_MEMORY
    said = f"sandbox {sandbox_id!r} ended: it {'was' if memory else 'had'} {reason}"
    return SandboxTerminatedError(said, out_of_memory=memory, by_command=not memory)


def _refused(field: str, why: str, *harmless: object) -> Rule:
    return Rule(field, why, lambda spec: is_landlock(spec) and getattr(spec, field) not in harmless)


LOOPBACK = "a sandbox with Landlock has the machine's loopback, so it gets no network; use provider 'docker'"
RULES = (
    _refused(
        "image", "Landlock mounts nothing: programs are this machine's; use provider 'docker'", None
    ),
    _refused("snapshot", "Landlock mounts nothing: upload the files", None),
    Rule(
        "mounts",
        "Landlock mounts nothing: upload the data",
        lambda spec: is_landlock(spec) and bool(spec.mounts),
        lambda spec: ", ".join(spec.mounts),
    ),
    _refused(
        "workdir",
        "Landlock mounts nothing: it is a folder that `Sandbox.workdir()` returns; leave the option out",
        None,
    ),
    _refused(
        "user",
        "commands have a uid of their own or their owner's; leave the option out",
        None,
        "sandbox",
    ),
    Rule(
        "network",
        LOOPBACK,
        lambda spec: is_landlock(spec) and (spec.network != "none" or spec.egress is not None),
        lambda spec: repr(spec.egress or spec.network),
    ),
    _refused("disk_mb", "nothing limits the files; leave the option out", None),
    _refused(
        "reuse",
        "a reset cannot prove with Landlock that a sandbox is as before; leave the option out",
        "never",
    ),
)
