"""The docker provider shows every behaviour."""

import os
import subprocess

import pytest

from sandboxkit.provider import Provider
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.testing.conformance import ProviderConformance

IMAGE = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", "sandboxkit/python:3.11")


@pytest.fixture(scope="class", autouse=True)
def daemon() -> None:
    """A daemon that answers and has the image."""
    try:
        command = ["docker", "image", "inspect", IMAGE]
        found = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        found = False
    if not found:
        reason = f"no Docker daemon with the image {IMAGE}"
        if os.environ.get("SANDBOXKIT_REQUIRE_DOCKER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


class TestDocker(ProviderConformance):
    spec = "sandboxkit.providers.docker:DockerProvider"
    image = IMAGE
    other_user = "nobody"

    @classmethod
    def make_provider(cls) -> Provider:
        return DockerProvider()
