"""Options, list of system calls and socket of gVisor's sandboxes, shared by the providers that start them."""

import errno
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sandboxkit.errors import SandboxError
from sandboxkit.providers import _agent
from sandboxkit.providers._rules import Rule, is_root
from sandboxkit.types import SandboxSpec

SOCKET_FOLDER = "/.sandboxkit-root"
"""A folder in memory that root alone may enter."""
SOCKET = f"{SOCKET_FOLDER}/agent"
"""The agent's socket. gVisor does not tell the agent who connects, so the folder's mode does."""
PIDS = 2048
"""Limit of gVisor's own threads on the host, which its programs' threads have too."""
GAVE_UP = (
    "gVisor's process ended by itself, which only the sandbox's own programs can cause, such as by too many "
    "processes or threads; run fewer at a time"
)
"""Why a sandbox ended whose gVisor neither memory nor a signal ended."""


def is_gvisor(spec: SandboxSpec) -> bool:
    """Return whether a sandbox is to run in gVisor."""
    return spec.isolation == "gvisor"


def seccomp() -> dict[str, Any]:
    """Return the list of system calls, in Docker's JSON format, with what gVisor needs.

    Debian 12's gVisor refuses a call with EPERM whatever error the list names. Then programs could start no
    thread: their C library tries clone3 first, and uses clone where the kernel does not know clone3. TRACE
    gives that error, ENOSYS, to a program that nobody traces.
    """
    profile: dict[str, Any] = json.loads(
        (Path(next(iter(_agent.__path__))) / "seccomp.json").read_bytes()
    )
    for rule in profile["syscalls"]:
        if rule.pop("errnoRet", None) == errno.ENOSYS:
            rule["action"] = "SCMP_ACT_TRACE"
    return profile


async def timed_start(start: Callable[[SandboxSpec], Awaitable[None]]) -> tuple[str, list[str]]:
    """Start and end a sandbox with gVisor; return the end of a sentence about it, and remedies."""
    began = time.monotonic()
    try:
        await start(SandboxSpec(isolation="gvisor", lifetime=60.0))
    except SandboxError as error:
        return ", in which no sandbox starts", [f"gVisor: {error}"]
    return f", in which a sandbox starts and ends in {time.monotonic() - began:.1f} s", []


OWN_OR_GVISOR = Rule(
    "isolation",
    "it is one of provider 'local'; give 'gvisor', or leave the option out",
    lambda spec: spec.isolation not in (None, "gvisor"),
)
"""Refuses what only local has."""
RULES = (
    Rule(
        "user",
        "with gVisor root's commands could end the agent; name another user",
        lambda spec: is_gvisor(spec) and is_root(spec.user),
    ),
    Rule(
        "pids",
        "gVisor does not limit processes; memory_mb bounds them, and too many end the sandbox",
        lambda spec: is_gvisor(spec) and spec.pids is not None,
    ),
    Rule(
        "mounts",
        "gVisor does not see the access control lists of volumes and mount points; upload the data",
        lambda spec: is_gvisor(spec) and bool(spec.mounts),
        lambda spec: ", ".join(spec.mounts),
    ),
    Rule(
        "gpu",
        "gVisor passes no GPUs on here",
        lambda spec: is_gvisor(spec) and spec.gpu is not None,
    ),
    Rule(
        "reuse",
        "a reset cannot prove in gVisor that a sandbox is as before",
        lambda spec: is_gvisor(spec) and spec.reuse == "reset",
    ),
)
"""Options that a sandbox with gVisor cannot honour, each with the reason."""
