"""A Docker daemon with the image of the tests, or no test at all."""

import functools
import os
import subprocess

from tests.components import lack, reason

TEST_IMAGE = "sandboxkit/python:3.11"


def require_docker() -> str:
    """The image to use. Without it the test is skipped, or fails where CI requires Docker."""
    if problem := docker_problem():
        lack(problem, "DOCKER")
    return os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)


def require_gvisor() -> None:
    """Without the runtime `runsc` the test is skipped, or fails where CI requires Docker."""
    require_docker()
    found = subprocess.run(
        ["docker", "info", "--format", "{{json .Runtimes}}"], capture_output=True, text=True
    )
    if '"runsc"' not in found.stdout:
        lack(reason("gVisor in the daemon", "install runsc, then scripts/dockerd.sh"), "DOCKER")


@functools.cache
def docker_problem() -> str:
    """Why Docker or the test image cannot be used; empty when both can."""
    image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
    try:
        done = subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return reason("Docker daemon", "scripts/dockerd.sh", str(error))
    if not done.returncode:
        return ""
    if "No such image" in done.stderr:
        return reason(f"image {image}", "scripts/test-image.sh")
    return reason("Docker daemon", "scripts/dockerd.sh", done.stderr)
