"""The file calls of a provider whose sandboxes have an agent."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Concatenate, ParamSpec, TypeVar

from sandboxkit.provider import Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.types import FileInfo

__all__ = ["FilesProvider"]

P = ParamSpec("P")
T = TypeVar("T")


class FilesProvider(Provider):
    """The file methods of `Provider`."""

    @abstractmethod
    def _call(
        self, sandbox_id: str, path: str | None = None
    ) -> AbstractAsyncContextManager[AgentClient]:
        """Yield the connection for one request, and translate the request's errors to provider errors."""

    @abstractmethod
    async def _ask(
        self,
        sandbox_id: str,
        path: str | None,
        request: Callable[Concatenate[AgentClient, P], Awaitable[T]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Return the result of one request, with the same translation of errors as `_call`."""

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        return await self._ask(sandbox_id, path, requests.read_file, path, max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        await self._ask(sandbox_id, path, requests.write_file, path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        await self._ask(sandbox_id, path, requests.put_archive, path, tar)

    async def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        async with self._call(sandbox_id, path) as client:
            archive = requests.get_archive(client, path)
            try:
                async for chunk in archive:
                    yield chunk
            finally:
                await archive.aclose()

    async def list_dir(self, sandbox_id: str, path: str) -> "list[FileInfo]":
        return await self._ask(sandbox_id, path, requests.list_dir, path)

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        return await self._ask(sandbox_id, path, requests.stat, path)

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        await self._ask(sandbox_id, path, requests.remove, path, recursive)
