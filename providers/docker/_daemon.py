"""Control calls to one Docker daemon: the docker package in worker threads, with time limits."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from docker import APIClient  # type: ignore[import-untyped]  # the package ships no types

from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import HANDLED, translate
from sandboxkit.providers.docker._stream import AttachStream, hijack

__all__ = ["Daemon", "DaemonInfo"]

T = TypeVar("T")

# Control calls in flight at a time; a daemon serves no more than that at once anyway.
_THREADS = 32
# Lets the first call find out which API version the daemon speaks; any daemon answers it.
_ANY_VERSION = "1.24"


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What a provider needs to know of the daemon's machine."""

    architecture: str
    """As uname names it."""
    cpus: int
    version: str
    runtimes: tuple[str, ...]
    security: tuple[str, ...]


class Daemon:
    """One daemon; connects at the first call, and may be used from one event loop."""

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._api: Any = None  # APIClient is untyped
        self._info: DaemonInfo | None = None
        self._lock = anyio.Lock()
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def call(
        self,
        function: Callable[[Any], T],
        *,
        what: str,
        sandbox_id: str | None = None,
        shield: bool = False,
        allow: Callable[[BaseException], bool] = lambda error: False,
    ) -> T:
        """Run `function(client)` in a thread and return its result.

        `what` completes "Docker cannot ..." in errors; an error that `allow` accepts is raised
        as it is. With `shield` a cancelled call is waited for, so that its effect is known;
        otherwise it is left to its time limit.
        """
        api = await self._client()
        scope = anyio.CancelScope(shield=shield)
        try:
            with scope:
                return await anyio.to_thread.run_sync(
                    function, api, abandon_on_cancel=not shield, limiter=self._threads
                )
        except HANDLED as error:
            if allow(error):
                raise
            raise translate(
                error, url=self.endpoint.url, what=what, sandbox_id=sandbox_id
            ) from error
        raise AssertionError("nobody cancels the scope itself")

    async def stream(self, path: str, body: Mapping[str, object] | None = None) -> AttachStream:
        """POST `path` and keep the connection as a byte stream."""
        api = await self._client()
        try:
            return await hijack(
                self.endpoint, f"/v{api.api_version}{path}", body, seconds=self._timeout
            )
        except TimeoutError as error:
            raise translate(error, url=self.endpoint.url, what="open a stream") from error

    async def info(self) -> DaemonInfo:
        """What `docker info` says, asked once."""
        if self._info is None:
            said = await self.call(lambda api: api.info(), what="describe itself")
            self._info = DaemonInfo(
                architecture=str(said.get("Architecture", "")),
                cpus=int(said.get("NCPU") or 1),
                version=str(said.get("ServerVersion", "")),
                runtimes=tuple(said.get("Runtimes") or ()),
                security=tuple(said.get("SecurityOptions") or ()),
            )
        return self._info

    async def aclose(self) -> None:
        """Close idle connections."""
        if self._api is not None:
            api, self._api = self._api, None
            api.close()

    async def _client(self) -> Any:
        async with self._lock:
            if self._api is None:
                try:
                    self._api = await anyio.to_thread.run_sync(
                        self._open, abandon_on_cancel=True, limiter=self._threads
                    )
                except HANDLED as error:
                    raise translate(
                        error, url=self.endpoint.url, what="tell its version"
                    ) from error
            return self._api

    def _open(self) -> Any:
        self.endpoint.probe(self._timeout)
        with contextlib.closing(self._new(_ANY_VERSION)) as probe:
            said = probe.version(api_version=False)
        if not isinstance(said, dict) or not isinstance(said.get("ApiVersion"), str):
            raise OSError("what answers there does not speak Docker's protocol")
        return self._new(said["ApiVersion"])

    def _new(self, version: str) -> Any:
        client = APIClient(
            base_url=self.endpoint.url,
            tls=self.endpoint.tls or False,
            version=version,
            timeout=self._timeout,  # pyright: ignore[reportArgumentType]  # any number will do
            max_pool_size=_THREADS,
        )
        # A proxy for the web is not the way to the daemon, whose streams do not take it either.
        client.trust_env = False
        return client
