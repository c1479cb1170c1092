"""Sends control calls to one Docker daemon: the docker package in worker threads, with time limits."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from docker import APIClient  # type: ignore[import-untyped]  # the package ships no types

from sandboxkit.errors import SandboxError
from sandboxkit.provider import no_thread
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._errors import HANDLED, refusal, translate
from sandboxkit.providers.docker._stream import AttachStream, hijack

T = TypeVar("T")

# Maximum number of control calls in flight; a daemon serves no more at a time anyway.
_THREADS = 32
# API version of the first call, which asks for the daemon's own version; any daemon answers it.
_ANY_VERSION = "1.24"
_INFO_SECONDS = 60.0
"""Age (s) at which the daemon is asked for its description again: a reload or a restart may change its
runtimes."""


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """Properties of the daemon and its machine."""

    architecture: str
    """The machine name of uname, such as x86_64."""
    cpus: int
    version: str
    runtimes: Mapping[str, tuple[str, ...]]
    """The name of each runtime, and its program or shim with the arguments."""
    default_runtime: str
    security: tuple[str, ...]
    podman: bool = False
    """Whether it is Podman's service, which speaks Docker's protocol."""
    limits: bool = True
    """Whether it limits memory, processes and CPUs. Where it does not, it ignores limits, or only warns."""


class Daemon:
    """A client of one daemon, for one event loop. Connects at the first call."""

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._api: Any = None  # APIClient is untyped
        self._info: DaemonInfo | None = None
        self._info_until = 0.0
        self._calls = 0
        self._closing = False
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

        `what` completes "Docker cannot ..." in errors. A failure is raised as `translate` maps it,
        or unchanged if `allow` accepts it. With `shield` a cancelled call is waited for, so that
        its effect is known; without it the thread is abandoned and ends at its time limit.
        """
        try:
            async with self._client() as api:
                with anyio.CancelScope(shield=shield):
                    return await anyio.to_thread.run_sync(
                        function, api, abandon_on_cancel=not shield, limiter=self._threads
                    )
        except SandboxError:
            raise
        except HANDLED as failure:
            error = refusal(failure)
            if allow(error):
                raise error from failure
            raise translate(
                error, url=self.endpoint.url, what=what, sandbox_id=sandbox_id
            ) from error
        except RuntimeError as error:
            if (lacking := no_thread(error)) is None:
                raise
            raise lacking from error
        raise AssertionError("nobody cancels the scope itself")

    async def stream(self, path: str, body: Mapping[str, object] | None = None) -> AttachStream:
        """POST `path` and keep the connection as a byte stream."""
        try:
            async with self._client() as api:
                version = api.api_version
            return await hijack(self.endpoint, f"/v{version}{path}", body, seconds=self._timeout)
        except TimeoutError as error:
            raise translate(error, url=self.endpoint.url, what="open a stream") from error

    async def info(self) -> DaemonInfo:
        """Return the result of `docker info`, a minute old at most unless the daemon has not answered since."""
        now = monotonic()
        if self._info is None or now >= self._info_until:
            self._info_until = now + _INFO_SECONDS  # meanwhile others use what is known
            try:
                self._info = await self.call(lambda api: _info(api.info()), what="describe itself")
            except SandboxError:
                if self._info is None:
                    raise
        return self._info

    async def aclose(self) -> None:
        """Close idle connections now, and those of calls in flight when the calls end."""
        self._closing = True
        self._close_idle()

    def reopen(self) -> None:
        """Keep idle connections open again, until the next `aclose()`."""
        self._closing = False

    def _close_idle(self) -> None:
        if self._closing and not self._calls and self._api is not None:
            api, self._api = self._api, None
            for adapter in api.adapters.values():
                # urllib3 closes connections only when nothing refers to their pool any more, and
                # the traceback of a stored error may refer to it.
                pools = adapter.poolmanager.pools
                for key in tuple(pools.keys()):
                    pools[key].close()
            api.close()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """Yield the client for one call; raises the translated error if no daemon answers.

        After `aclose()` the client lives only as long as calls use it: a command that the closing
        cut off may still ask why it ended.
        """
        self._calls += 1
        try:
            try:
                # The limit includes the wait for the lock, so that waiting calls time out together.
                with anyio.fail_after(self._timeout):
                    async with self._lock:
                        if self._api is None:
                            self._api = await anyio.to_thread.run_sync(
                                self._open, abandon_on_cancel=True, limiter=self._threads
                            )
            except HANDLED as failure:
                error = refusal(failure)
                raise translate(error, url=self.endpoint.url, what="report its version") from error
            yield self._api
        finally:
            self._calls -= 1
            self._close_idle()

    def _open(self) -> Any:
        self.endpoint.probe(self._timeout)
        with contextlib.closing(self._new(_ANY_VERSION)) as probe:
            answer = probe.version(api_version=False)
        if not isinstance(answer, dict) or not isinstance(answer.get("ApiVersion"), str):
            raise OSError("the server there does not speak Docker's protocol")
        return self._new(answer["ApiVersion"])

    def _new(self, version: str) -> Any:
        client = APIClient(
            base_url=self.endpoint.url,
            tls=self.endpoint.tls or False,
            version=version,
            timeout=self._timeout,  # pyright: ignore[reportArgumentType]  # any number will do
            max_pool_size=_THREADS,
        )
        # Ignore the proxy settings of the environment, as our own streams to the daemon do.
        client.trust_env = False
        return client


# Any: the daemon's answers are untyped.
def _info(answer: Any) -> DaemonInfo:
    podman = "BuildahVersion" in answer
    security = answer.get("SecurityOptions") or ()
    rootless = answer.get("Rootless") or any("name=rootless" in each for each in security)
    return DaemonInfo(
        architecture=str(answer["Architecture"]),
        cpus=int(answer.get("NCPU") or 1),
        version=str(answer.get("ServerVersion", "")),
        runtimes={
            str(name): (
                str(each.get("path") or each.get("runtimeType") or name),
                *(each.get("runtimeArgs") or ()),
            )
            for name, each in (answer.get("Runtimes") or {}).items()
            # Podman lists those that it would look for, and reads no list of system calls for gVisor.
            if not (podman and name == "runsc")
        },
        default_runtime=str(answer.get("DefaultRuntime") or "runc"),
        security=(
            *security,
            *(["name=rootless"] if answer.get("Rootless") else []),  # Podman's word for it
        ),
        podman=podman,
        # Without root it is systemd that gives an engine control groups.
        limits=not rootless
        or (str(answer.get("CgroupVersion")) == "2" and answer.get("CgroupDriver") == "systemd"),
    )
