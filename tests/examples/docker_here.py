"""Whether examples can run on Docker here."""

import functools
import os
import subprocess

TEST_IMAGE = "sandboxkit/python:3.11"


@functools.cache
def docker_problem() -> str:
    """Why Docker or the test image cannot be used; empty when both can."""
    image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
    try:
        done = subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}; run scripts/dockerd.sh"
    return f"{done.stderr.strip()}; run scripts/test-image.sh" if done.returncode else ""
