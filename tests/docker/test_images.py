"""Images that are missing, pulled, or unusable."""

import logging
import subprocess
from collections.abc import Iterator

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, ImageNotFoundError
from sandboxkit.providers.docker import DockerProvider, PullProgress
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import docker
from tests.docker.registry import Registry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("daemon")]


@pytest.fixture
def registry(daemon: None) -> Iterator[Registry]:
    with Registry() as registry:
        yield registry
        subprocess.run(["docker", "rmi", "--force", registry.image], capture_output=True)


async def test_a_missing_image_is_pulled_once_with_progress_and_again_after_it_was_removed(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[PullProgress] = []
    provider = DockerProvider(on_pull=seen.append)
    with caplog.at_level(logging.INFO, logger="sandboxkit.docker"):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(provider._images.ensure, registry.image)
        assert caplog.text.count("pulling image") == 1
        assert caplog.text.count(f"pulled image {registry.image}") == 1
        assert (await provider._images.ensure(registry.image)).user == "1234"
        docker("rmi", "--force", registry.image)
        await provider.delete(await provider.create(SandboxSpec(image=registry.image)))
        assert caplog.text.count(f"pulled image {registry.image}") == 2
    await provider.aclose()
    assert {progress.image for progress in seen} == {registry.image}
    assert any("Pull complete" in progress.status for progress in seen)


async def test_a_missing_image_is_named_with_remedies(registry: Registry) -> None:
    provider = DockerProvider()
    name = f"{registry.host}/absent:9"
    with pytest.raises(ImageNotFoundError) as caught:
        await provider.create(SandboxSpec(image=name))
    for words in (name, "docker build", "SANDBOXKIT_DOCKER_IMAGE"):
        assert words in str(caught.value)


async def test_a_registry_that_cannot_be_reached_is_an_image_not_found() -> None:
    provider = DockerProvider()
    with pytest.raises(ImageNotFoundError, match="refused"):
        await provider.create(SandboxSpec(image="127.0.0.1:1/absent:9"))


@pytest.mark.parametrize("name", ["Not A Name", "UPPER/case", "x:y:z", "/no/such/image"])
async def test_an_impossible_reference_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await DockerProvider().create(SandboxSpec(image=name))
    assert name in str(caught.value)
