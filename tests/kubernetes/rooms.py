"""Fixtures for tests that make sandboxes in a cluster; a test module imports those that it uses."""

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import Command
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.here import remove_agents, variables

__all__ = ["Box", "provider", "room"]


@pytest.fixture
def room(found_cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A namespace of the test's own, in which providers without arguments make sandboxes."""
    for name, value in variables(found_cluster, namespace).items():
        monkeypatch.setenv(name, value)
    yield namespace
    remove_agents(found_cluster, namespace)


@pytest.fixture
async def provider(room: str, anyio_backend: str) -> AsyncIterator[KubernetesProvider]:
    """A provider with nothing but the variables' settings."""
    provider = KubernetesProvider()
    yield provider
    await provider.aclose()


class Box:
    """One sandbox with a short way to run a command in it."""

    def __init__(self, provider: KubernetesProvider, sandbox_id: str) -> None:
        self.provider, self.id = provider, sandbox_id

    async def run(self, *argv: str, user: str | None = None) -> tuple[int, str, str]:
        """Its status, stdout and stderr."""
        texts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

        async def output(stream: StreamName, chunk: bytes) -> None:
            texts[stream] += chunk

        with anyio.fail_after(90):
            ended = await self.provider.exec(self.id, Command(argv=argv, user=user), output)
        return ended.status, texts["stdout"].decode(), texts["stderr"].decode()

    async def python(self, code: str) -> str:
        """Run Python in the sandbox and return what it printed; it must succeed."""
        status, out, err = await self.run("python3", "-c", code)
        assert status == 0, err
        return out.strip()
