"""The errors of sandboxes that cannot start on this machine, with what to do about them."""

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from sandboxkit.errors import CapacityError, SandboxStartError
from sandboxkit.types import SandboxSpec

VARIABLE = "SANDBOXKIT_LOCAL_ISOLATION"
REMEDY = ". No sandbox runs without isolation. Remedy: "
"""Stands in an error between what fails and what to do."""
_ABI = 6
"""The version of Landlock that scopes signals: without that, the end of one sandbox would end the owner's programs."""
_LANDLOCK_CREATE_RULESET = 444
_LOAD = re.compile(
    "temporarily unavailable|cannot allocate memory|too many open files|no space left|timed out|no result",
    re.IGNORECASE,
)
"""The words of the kernel and of our own helpers for a machine that has no room for a process, or no time for it."""
_REFUSED = re.compile("namespace|uid map|Operation not permitted")
"""The words of a machine that lets nobody make namespaces."""


def start_failure(message: str) -> SandboxStartError:
    """Return the error of a start: a CapacityError, which is retryable, if load alone may be the reason."""
    return (CapacityError if _LOAD.search(message) else SandboxStartError)(message)


def namespace_failure(reason: str) -> SandboxStartError:
    """Return the error of a program that makes namespaces, from its last words: with a remedy if they are refused."""
    # The kernel says "no space left" where a setting allows no namespaces.
    setting = _setting()
    if not _REFUSED.search(reason) or (_LOAD.search(reason) and not setting):
        return start_failure(reason)
    return SandboxStartError(f"{reason}{REMEDY}{ways_out()}")


def not_started(spec: SandboxSpec, reason: str) -> SandboxStartError:
    """Return the error of a sandbox whose bubblewrap, or with Landlock whose supervisor, failed with this text."""
    failure = start_failure if spec.isolation == "landlock" else namespace_failure
    return failure(f"the sandbox did not start: {reason}")


def ways_out() -> str:
    """Return what to do where namespaces cannot be made."""
    if setting := _setting():
        return setting
    flags = (
        "allow namespaces: in Docker with --security-opt seccomp=unconfined --security-opt systempaths=unconfined, in "
        "a pod with the fields securityContext.seccompProfile.type=Unconfined, securityContext.procMount=Unmasked and "
        "hostUsers=false"
    )
    return (
        f"the kernel or a container around this program forbids namespaces: {flags}{or_landlock()}"
    )


def or_landlock() -> str:
    """Return the way out that needs neither namespaces nor rights, or why it is none here."""
    if lacks := landlock_lacks():
        return f" ({lacks})"
    return f"; or choose isolation='landlock', or {VARIABLE}=landlock, which needs no namespaces and isolates less"


def _setting() -> str:
    """Return how to allow user namespaces here; "" if no setting is known to forbid them."""
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


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


@cache
def landlock_lacks() -> str:
    """Return what this machine lacks for Landlock; "" if it has all of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 0:
        return f"this kernel has no Landlock ({os.strerror(ctypes.get_errno())})"
    if version < _ABI:
        return (
            f"this kernel's Landlock has version {version}: it needs version {_ABI}, of Linux 6.12"
        )
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return "this kernel lists no children in /proc (CONFIG_PROC_CHILDREN)"
    return ""
