"""A Docker daemon with the image of the tests, or no test at all."""

import functools
import os
import subprocess

import pytest

TEST_IMAGE = "sandboxkit/python:3.11"


def require_docker() -> str:
    """The image to use. Without it the test is skipped, or fails where CI requires Docker."""
    if problem := docker_problem():
        if os.environ.get("SANDBOXKIT_REQUIRE_DOCKER"):
            pytest.fail(problem)
        pytest.skip(problem)
    return os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)


def require_gvisor() -> None:
    """Without the runtime `runsc` the test is skipped, or fails where CI requires Docker."""
    require_docker()
    found = subprocess.run(
        ["docker", "info", "--format", "{{json .Runtimes}}"], capture_output=True, text=True
    )
    if '"runsc"' not in found.stdout:
        problem = "no gVisor: install runsc and run scripts/dockerd.sh"
        if os.environ.get("SANDBOXKIT_REQUIRE_DOCKER"):
            pytest.fail(problem)
        pytest.skip(problem)


@functools.cache
def docker_problem() -> str:
    """Why Docker or the test image cannot be used; empty when both can."""
    image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
    try:
        done = subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}; run scripts/dockerd.sh"
    return f"{done.stderr.strip()}; run scripts/test-image.sh" if done.returncode else ""
