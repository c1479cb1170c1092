"""An OpenEnv image's server in a sandbox, as OpenEnv's own client starts, reaches and stops it."""

import asyncio
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, ImageNotFoundError, Session
from tests.docker_here import require_docker
from tests.frameworks_here import framework
from tests.openenv.conftest import TAG, live

core = framework("openenv.core")

from sandboxkit.integrations.openenv import SandboxkitContainerProvider  # noqa: E402

pytestmark = pytest.mark.anyio
_PACKAGES = ("uvicorn", "websockets", "h11", "click", "typing_extensions.py")
"""The server of the image needs these packages: all are plain Python, so any interpreter can import them."""


@pytest.fixture(scope="session")
def image() -> dict[str, bytes]:
    """The files that an image would have: an environment below /app/env, and its packages."""
    files = {
        f"/app/env/{p.name}": p.read_bytes()
        for p in (Path(__file__).parent / "image").iterdir()
        if p.is_file()
    }
    for name in _PACKAGES:
        found = Path(framework(name.removesuffix(".py")).__file__)
        folder = found.parent if found.name == "__init__.py" else found.parent / name
        for path in folder.rglob("*.py") if folder.is_dir() else [found]:
            files[f"/app/env/{path.relative_to(folder.parent)}"] = path.read_bytes()
    return files


@pytest.mark.parametrize("name", ["local", "docker"])
async def test_a_client_starts_uses_and_stops_an_environment(
    name: str, image: dict[str, bytes]
) -> None:
    docker = require_docker() if name == "docker" else None
    async with Session(name, tags=TAG) as session:
        provider = SandboxkitContainerProvider(session, files=image, env={"GREETING": "hello"})
        if docker is None:
            client = core.GenericEnvClient(provider=provider)
        else:
            client = await core.GenericEnvClient.from_docker_image(docker, provider=provider)
        async with client:
            assert (await client.reset()).observation == {"steps": 0, "greeting": "hello"}
            assert (await client.step({})).observation["steps"] == 1
            with pytest.raises(ConfigurationError, match="stop_container"):
                provider.start_container()
            assert await live(session) == 1
        assert await live(session) == 0
        provider.close()  # again


async def test_a_server_that_ends_says_why(session: Session) -> None:
    provider = SandboxkitContainerProvider(session)
    client = core.GenericEnvClient(provider=provider)
    with pytest.raises(RuntimeError, match=r"status 1: no openenv.yaml"):
        await client.connect()
    assert await live(session) == 0


async def test_a_server_that_is_not_ready_in_time(session: Session) -> None:
    with SandboxkitContainerProvider(session, command=["sleep", "60"]) as provider:
        url = await asyncio.to_thread(provider.start_container, env_vars={"A": "1"})
        with pytest.raises(TimeoutError, match=r"within 0\.3 s; give a larger timeout_s"):
            provider.wait_for_ready(url, 0.3)
    assert await live(session) == 0


async def test_a_start_that_fails_leaves_nothing(session: Session) -> None:
    provider = SandboxkitContainerProvider(session)
    with pytest.raises(ImageNotFoundError, match="'echo-env:latest'"):
        provider.start_container("echo-env:latest")
    with pytest.raises(ConfigurationError):
        provider.start_container(port=-1)
    assert await live(session) == 0
