"""The set of vLLM servers: tracks which are lost, and takes recovered ones back."""

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.engines import EngineError

__all__ = ["Fleet", "VllmServer"]

_LOOK_EVERY = 0.1
_log = logging.getLogger("sandboxkit.grpo")


@dataclass(eq=False, slots=True)
class VllmServer:
    """One vLLM server."""

    url: str
    lost: str = ""
    """Why the server is not used; empty while it is used."""
    losses: int = 0
    """Number of times it was lost. Errors of requests from before the last loss are ignored."""
    calls: set[Operation[Any]] = field(default_factory=set)  # Any: what a server answers
    """Pending calls for completions."""


class Fleet:
    """Servers with the same weights. Thread-safe, in any event loop.

    `mend(server)` makes a lost server ready, or raises EngineError or ConfigurationError. The fleet
    retries it on its own thread; it must hold `turn` while it changes weights.
    """

    def __init__(
        self, urls: Sequence[str], patience: float, mend: Callable[[VllmServer], None]
    ) -> None:
        self.servers = [VllmServer(url) for url in urls]
        self.turn = threading.Lock()
        """Held while weights are changed, so that no server comes back meanwhile."""
        self._patience, self._mend = patience, mend
        self._change = threading.Lock()
        self._none_since: float | None = None
        self._mending: threading.Thread | None = None
        self._closed = threading.Event()
        self._threads = concurrent.futures.ThreadPoolExecutor(len(urls), "servers")

    @property
    def living(self) -> list[VllmServer]:
        """The servers that are not lost."""
        return [server for server in self.servers if not server.lost]

    def each(self, step: Callable[[str], object]) -> None:
        """Call `step` with every living server's URL, concurrently; an EngineError loses that server."""

        def attempt(server: VllmServer) -> None:
            try:
                step(server.url)
            except EngineError as error:
                self.lose(server, error)

        list(self._threads.map(attempt, self.living))

    async def choose(self, preferred: str = "") -> VllmServer:
        """Return the preferred server if it lives, else the least busy one; wait for one if necessary.

        Raises EngineError if no server has been living for `patience` seconds.
        """
        while True:
            living = self.living
            for server in living:
                if server.url == preferred:
                    return server
            if living:
                return min(living, key=lambda server: len(server.calls))
            with self._change:
                since = self._none_since
            if since is not None and time.monotonic() - since > self._patience:
                reasons = "; ".join(server.lost for server in self.servers)
                raise EngineError(
                    f"no vLLM server answered for engine.patience={self._patience:g} s ({reasons}): "
                    "start one, and the run again, which goes on from its checkpoint"
                )
            await asyncio.sleep(_LOOK_EVERY)

    @contextlib.contextmanager
    def asking(self, server: VllmServer, call: Operation[Any]) -> Iterator[None]:
        """Register a call in this context; it is cancelled if the server is lost."""
        server.calls.add(call)
        try:
            yield
        finally:
            server.calls.discard(call)

    def lose(self, server: VllmServer, why: Exception) -> None:
        """Stop using a server until it is mended, and cancel its pending calls."""
        with self._change:
            if server.lost or self._closed.is_set():
                return
            server.lost = str(why)
            server.losses += 1
            left = len(self.living)
            if not left:
                self._none_since = time.monotonic()
            if self._mending is None:
                self._mending = threading.Thread(target=self._take_back, daemon=True)
                self._mending.start()
        _log.warning("%s; %d of %d servers are left", why, left, len(self.servers))
        for call in tuple(server.calls):
            call.cancel()

    def close(self) -> None:
        """Stop mending lost servers, and cancel all pending calls."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for server in self.servers:
            for call in tuple(server.calls):
                call.cancel()

    def _take_back(self) -> None:
        waits = pauses()
        while not self._closed.wait(next(waits)):
            for server in self.servers:
                if server.lost and self._mended(server):
                    waits = pauses()
            with self._change:
                if len(self.living) == len(self.servers):
                    self._mending = None
                    return

    def _mended(self, server: VllmServer) -> bool:
        try:
            self._mend(server)
        except (ConfigurationError, RuntimeError) as error:  # the latter of a client that is closed
            if not self._closed.is_set() and str(error) != server.lost:
                server.lost = str(error)
                _log.warning("%s", error)
            return False
        return True

    def back(self, server: VllmServer) -> None:
        """Use a server again. The caller holds `turn`."""
        with self._change:
            server.lost, self._none_since = "", None
        _log.warning(
            "vLLM at %s is back; there are %d of %d",
            server.url,
            len(self.living),
            len(self.servers),
        )
