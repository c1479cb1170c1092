"""The sandboxes and providers of one test, which are removed at its end."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import anyio

from sandboxkit import provider as contract
from sandboxkit.provider import Provider, StreamName
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import Command, SandboxSpec

P = TypeVar("P", bound=Provider)


class Box:
    """One sandbox with a short way to run a command in it."""

    def __init__(self, inner: contract.Box) -> None:
        self.inner, self.id, self.provider = inner, inner.id, inner.provider

    async def run(self, *argv: str, user: str | None = None) -> tuple[int, str, str]:
        """Its status, stdout and stderr."""
        texts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

        async def output(stream: StreamName, chunk: bytes) -> None:
            texts[stream] += chunk

        with anyio.fail_after(90):
            ended = await self.inner.exec(Command(argv=argv, user=user), output)
        return ended.status, texts["stdout"].decode(), texts["stderr"].decode()

    async def python(self, code: str) -> str:
        """Run Python in the sandbox and return what it printed; it must succeed."""
        status, out, err = await self.run("python3", "-c", code)
        assert status == 0, err
        return out.strip()


# Any: options of every type.
class Boxes(Generic[P]):
    """Makes providers and sandboxes; `spec` is of every sandbox that does not say otherwise."""

    def __init__(self, make: Callable[..., P], **spec: Any) -> None:
        self._make, self._spec = make, spec
        self._providers: list[P] = []
        self._started: list[Box] = []

    def provider(self, **options: Any) -> P:
        """Make a provider, which is closed in the end."""
        self._providers.append(self._make(**options))
        return self._providers[-1]

    async def start(self, by: Provider | None = None, **spec: Any) -> Box:
        """Start a sandbox with a provider, or with one of its own; it is deleted in the end."""
        by = by or self.provider()
        self._started.append(Box(await by.create(SandboxSpec(**self._spec | spec))))
        return self._started[-1]

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """Delete the sandboxes and close the providers that there are so far."""
        try:
            while self._started:
                await self._started.pop().inner.delete()
        finally:
            while self._providers:
                await self._providers.pop().aclose()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


Containers = Boxes[DockerProvider]
Pods = Boxes[KubernetesProvider]
