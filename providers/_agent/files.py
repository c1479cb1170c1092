"""The file calls of a provider whose sandboxes have an agent."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Concatenate, ParamSpec, TypeVar

from sandboxkit.errors import SandboxError
from sandboxkit.provider import Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, SilentError
from sandboxkit.types import FileInfo

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FilesProvider(Provider):
    """The file methods of `Provider`."""

    @abstractmethod
    async def _client(self, sandbox_id: str) -> AgentClient:
        """Return the live connection to a sandbox; see `AgentProvider`."""

    @abstractmethod
    async def _explained(
        self,
        error: ConnectionEndedError | SilentError | CallError,
        sandbox_id: str,
        client: AgentClient,
        path: str | None,
        *,
        once: bool = False,
    ) -> SandboxError:
        """Translate a request's error to a provider error; see `AgentProvider`."""

    @asynccontextmanager
    async def _call(self, sandbox_id: str, path: str | None = None) -> AsyncIterator[AgentClient]:
        """Yield the connection for one request, and translate its errors to those of the SPI."""
        client = await self._client(sandbox_id)
        try:
            yield client
        except (ConnectionEndedError, SilentError, CallError) as error:
            raise await self._explained(error, sandbox_id, client, path) from error

    async def _ask(
        self,
        sandbox_id: str,
        path: str | None,
        request: Callable[Concatenate[AgentClient, _P], Awaitable[_T]],
        *arguments: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        async with self._call(sandbox_id, path) as client:
            return await request(client, *arguments, **options)

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        return await self._ask(sandbox_id, path, requests.read_file, path, max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        await self._ask(sandbox_id, path, requests.write_file, path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        await self._ask(sandbox_id, path, requests.put_archive, path, tar)

    async def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        async with (
            self._call(sandbox_id, path) as client,
            aclosing(requests.get_archive(client, path)) as archive,
        ):
            async for chunk in archive:
                yield chunk

    async def read_pieces(
        self, sandbox_id: str, path: str, *, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        async with (
            self._call(sandbox_id, path) as client,
            aclosing(requests.read_pieces(client, path, max_bytes)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def list_dir(self, sandbox_id: str, path: str) -> "list[FileInfo]":
        return await self._ask(sandbox_id, path, requests.list_dir, path)

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        return await self._ask(sandbox_id, path, requests.stat, path)

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        await self._ask(sandbox_id, path, requests.remove, path, recursive)
