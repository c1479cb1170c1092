"""Images that are missing, pulled, or unusable."""

import logging
import subprocess
from collections.abc import Iterator

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, ImageNotFoundError, SandboxError
from sandboxkit.providers.docker import DockerProvider, PullProgress
from sandboxkit.types import SandboxSpec
from tests.docker.boxes import Boxes
from tests.docker.conftest import docker
from tests.docker.registry import Registry

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("daemon")]


@pytest.fixture
def registry(daemon: None) -> Iterator[Registry]:
    with Registry() as registry:
        yield registry
        subprocess.run(["docker", "rmi", "--force", registry.image], capture_output=True)


async def test_a_missing_image_is_pulled_once_with_progress_and_again_after_it_was_removed(
    boxes: Boxes[DockerProvider], registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[PullProgress] = []
    provider = boxes.provider(on_pull=seen.append)
    with caplog.at_level(logging.INFO, logger="sandboxkit.docker"):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(provider._images.ensure, registry.image)
        assert caplog.text.count("pulling image") == 1
        assert caplog.text.count(f"pulled image {registry.image}") == 1
        assert (await provider._images.ensure(registry.image)).user == "1234"
        docker("rmi", "--force", registry.image)
        await provider.delete((await boxes.start(provider, image=registry.image)).id)
        assert caplog.text.count(f"pulled image {registry.image}") == 2
    assert {progress.image for progress in seen} == {registry.image}
    assert any("Pull complete" in progress.status for progress in seen)


async def test_an_image_that_cannot_be_had_is_an_error_with_remedies(registry: Registry) -> None:
    absent = f"{registry.host}/absent:9"
    cases: list[tuple[str, type[SandboxError], tuple[str, ...]]] = [
        (absent, ImageNotFoundError, (absent, "docker build", "SANDBOXKIT_DOCKER_IMAGE")),
        ("127.0.0.1:1/absent:9", ImageNotFoundError, ("refused",)),
    ]
    names = ("Not A Name", "UPPER/case", "x:y:z", "/no/such/image")
    cases += [(name, ConfigurationError, (name,)) for name in names]
    for image, error, words in cases:
        with pytest.raises(error) as caught:
            await DockerProvider().create(SandboxSpec(image=image))
        assert type(caught.value) is error
        assert all(each in str(caught.value) for each in words)
