"""The file calls of a provider whose sandboxes have an agent."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager

from sandboxkit.provider import Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.types import FileInfo

__all__ = ["FilesProvider"]


class FilesProvider(Provider):
    """The file methods of `Provider`."""

    @abstractmethod
    def _call(
        self, sandbox_id: str, path: str | None = None
    ) -> AbstractAsyncContextManager[AgentClient]:
        """Yield the connection for one request, and translate the request's errors to provider errors."""

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        async with self._call(sandbox_id, path) as client:
            return await requests.read_file(client, path, max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        async with self._call(sandbox_id, path) as client:
            await requests.write_file(client, path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        async with self._call(sandbox_id, path) as client:
            await requests.put_archive(client, path, tar)

    async def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        async with self._call(sandbox_id, path) as client:
            archive = requests.get_archive(client, path)
            try:
                async for chunk in archive:
                    yield chunk
            finally:
                await archive.aclose()

    async def list_dir(self, sandbox_id: str, path: str) -> "list[FileInfo]":
        async with self._call(sandbox_id, path) as client:
            return await requests.list_dir(client, path)

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        async with self._call(sandbox_id, path) as client:
            return await requests.stat(client, path)

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        async with self._call(sandbox_id, path) as client:
            await requests.remove(client, path, recursive)
