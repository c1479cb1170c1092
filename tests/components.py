"""What a test may need of its machine: without it the test is skipped, or fails where CI requires it.

The reason of each such skip is `no COMPONENT (WHY): REMEDY`. tests/outcomes.py counts them by component.
"""

import functools
import os
import re
import shutil
import subprocess
from typing import NoReturn

import pytest

from sandboxkit.providers.local import _cgroup

_PACKAGES = {
    "cc": "build-essential",
    "g++": "build-essential",
    "linux.uml": "user-mode-linux",
    "newuidmap": "uidmap",
    "pgrep": "procps",
    "qemu-system-aarch64": "qemu-system-arm",
}
"""Debian's packages of programs that have another name."""
_REASON = re.compile(r"(?:Skipped: )?no (.+?)(?: \(.*\))?: (.+)", re.DOTALL)


def reason(component: str, remedy: str, why: str = "") -> str:
    """Say what is not there and how to get it. `why` may differ from test to test."""
    return (
        f"no {component} ({' '.join(why.split())}): {remedy}"
        if why
        else f"no {component}: {remedy}"
    )


def parsed(skip: str) -> tuple[str, str] | None:
    """Return the component and the remedy of a skip's reason; None for one with another cause."""
    found = _REASON.fullmatch(skip)
    return (found[1], found[2]) if found else None


def lack(problem: str, required: str = "") -> NoReturn:
    """Skip the test for this reason; fail it where CI sets the variable SANDBOXKIT_REQUIRE_`required`."""
    if required and _is_required(required):
        pytest.fail(problem)
    pytest.skip(problem)


def without_program(name: str) -> str:
    """Return the reason for a skip if this machine does not have the program, else an empty string."""
    return (
        "" if shutil.which(name) else reason(name, f"apt-get install {_PACKAGES.get(name, name)}")
    )


def require_program(name: str, required: str = "DOCKER") -> None:
    """Skip the test without the program, or fail where CI, which installs it, requires it."""
    if problem := without_program(name):
        lack(problem, required)


def needs_program(name: str) -> pytest.MarkDecorator:
    """Skip a test without the program; CI, which installs it, runs the test."""
    found = shutil.which(name) or _is_required("DOCKER")
    return pytest.mark.skipif(not found, reason=without_program(name) or name)


def needs_root(why: str) -> pytest.MarkDecorator:
    """Skip a test that an ordinary user runs."""
    return pytest.mark.skipif(os.geteuid() != 0, reason=without_root(why))


def require_root(why: str) -> None:
    """Skip this test if an ordinary user runs it."""
    if os.geteuid() != 0:
        lack(without_root(why))


def without_root(why: str) -> str:
    """Return the reason for a skip for want of root's rights."""
    return reason("root", "run the tests as root", why)


def needs_mounts(why: str) -> pytest.MarkDecorator:
    """Skip a test that mounts or makes namespaces as root, which root of a container may not."""
    remedy = "run the tests as root of the machine, or in a container with --privileged"
    return pytest.mark.skipif(not _can_mount(), reason=reason("mounts and namespaces", remedy, why))


@functools.cache
def _can_mount() -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "true"]
    return os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode


def needs_control_group(controller: str = "") -> pytest.MarkDecorator:
    """Skip a test of local without this controller of control groups, or without any."""
    found = controller in _cgroup.available() if controller else bool(_cgroup.available())
    return pytest.mark.skipif(not found, reason=without_control_group(controller))


def without_control_group(controller: str) -> str:
    """Return the reason for a skip for want of a controller of control groups."""
    remedy = "run the tests as root, or with `systemd-run --user --scope -p Delegate=yes`"
    return reason("control groups", remedy, controller)


def needs_local_gvisor() -> pytest.MarkDecorator:
    """Skip a test of gVisor without a daemon. CI has what it needs, so nothing is skipped there."""
    controller = "memory"
    problem = without_program("runsc") or without_control_group(controller)
    found = shutil.which("runsc") and controller in _cgroup.available()
    return pytest.mark.skipif(not found and not _is_required("DOCKER"), reason=problem)


def _is_required(what: str) -> bool:
    return bool(os.environ.get(f"SANDBOXKIT_REQUIRE_{what}"))
