"""The contract through `sandboxkit serve`, over local and docker."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from tests.conformance.hooks import VendorHooks
from tests.docker_here import TEST_IMAGE, require_docker
from tests.service_here import service


@pytest.fixture(scope="class", autouse=True)
def _service(request: pytest.FixtureRequest) -> Iterator[None]:
    """The class's service; its address is in the environment, as other processes expect it."""
    assert request.cls is not None
    if request.cls.backend == "docker":
        require_docker()
    image = getattr(request.cls, "image", None)
    listed = ["--allow-image", image] if image else []
    with service(request.cls.backend, *listed) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOXKIT_SERVICE_URL", running.url)
        VendorHooks.vendor = running.process.pid, running.url
        yield


class ServiceHooks(VendorHooks, ProviderConformance):
    __test__ = False
    backend: str
    spec = "sandboxkit.providers.service:ServiceProvider"


class TestServiceOverLocal(ServiceHooks):
    __test__ = True
    backend = "local"


@pytest.mark.nightly  # the service is the same; its own code for docker's sandboxes is none
class TestServiceOverDocker(ServiceHooks):
    __test__ = True
    backend = "docker"
    image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)
    other_user = "nobody"

    def test_a_full_disk_is_a_file_error(self, session: Session, large: Path) -> None:
        """The service's backend refuses the option, which this side cannot know before."""
        with pytest.raises(ConfigurationError, match="disk_mb=16"):
            session.sandbox(disk_mb=16).start().result(DEADLINE)
