"""The docker provider shows every behaviour."""

import os

import pytest

from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import DockerHooks
from tests.docker_here import TEST_IMAGE, require_docker

IMAGE = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)


@pytest.fixture(scope="class", autouse=True)
def daemon() -> None:
    require_docker()


class TestDocker(DockerHooks, ProviderConformance):
    spec = "sandboxkit.providers.docker:DockerProvider"
    image = IMAGE
    other_user = "nobody"
    snapshots_lose = frozenset({"holes", "nanoseconds", "xattrs"})
    silence_bound = 18.0
    """Beside other tests; tests/docker/test_silence.py has what is documented."""
