"""Which servers there are to sample from, which are lost, and how the lost ones are taken back."""

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
from sandboxkit.integrations.grpo.engines import EngineError
from sandboxkit.integrations.grpo.pauses import pauses

__all__ = ["Fleet", "Server"]

_LOOK_EVERY = 0.1
_log = logging.getLogger("sandboxkit.grpo")


@dataclass(eq=False, slots=True)
class Server:
    """One of them."""

    url: str
    lost: str = ""
    """Why it is not sampled from; empty while it is."""
    losses: int = 0
    """How often it was lost: what was asked of it before the last time counts no more."""
    calls: set[Operation[Any]] = field(default_factory=set)  # Any: what a server answers
    """For completions, that it has not answered."""


class Fleet:
    """Servers of the same weights. Any thread, and any loop, may call.

    `mend(server)` is to make a lost one ready, and raises EngineError or ConfigurationError where
    it cannot; it is called on a thread of the fleet's own, again and again, and takes its `turn`.
    """

    def __init__(
        self, urls: Sequence[str], patience: float, mend: Callable[[Server], None]
    ) -> None:
        self.servers = [Server(url) for url in urls]
        self.turn = threading.Lock()
        """Held by who changes weights, so that no server comes back in between."""
        self._patience, self._mend = patience, mend
        self._change = threading.Lock()
        self._none_since: float | None = None
        self._mending: threading.Thread | None = None
        self._closed = threading.Event()
        self._threads = concurrent.futures.ThreadPoolExecutor(len(urls), "servers")

    @property
    def living(self) -> list[Server]:
        """Those to sample from."""
        return [server for server in self.servers if not server.lost]

    def each(self, step: Callable[[str], object]) -> None:
        """Call with every living server's url, all at once; one for which it raises is lost."""

        def attempt(server: Server) -> None:
            try:
                step(server.url)
            except EngineError as error:
                self.lose(server, error)

        list(self._threads.map(attempt, self.living))

    async def choose(self, preferred: str = "") -> Server:
        """That of the url, if it lives, or else the least busy one; waits until there is one.

        Raises EngineError where there was none for `patience` seconds.
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
    def asking(self, server: Server, call: Operation[Any]) -> Iterator[None]:
        """While the call is waited for; it is cancelled where the server is lost."""
        server.calls.add(call)
        try:
            yield
        finally:
            server.calls.discard(call)

    def lose(self, server: Server, why: Exception) -> None:
        """Sample from it no more, until it was mended; cancels what it was asked."""
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
        """Give up what is lost, and what is asked."""
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

    def _mended(self, server: Server) -> bool:
        try:
            self._mend(server)
        except (ConfigurationError, RuntimeError) as error:  # the latter of a client that is closed
            if not self._closed.is_set() and str(error) != server.lost:
                server.lost = str(error)
                _log.warning("%s", error)
            return False
        return True

    def back(self, server: Server) -> None:
        """Sample from it again; who holds `turn` says so."""
        with self._change:
            server.lost, self._none_since = "", None
        _log.warning(
            "vLLM at %s is back; there are %d of %d",
            server.url,
            len(self.living),
            len(self.servers),
        )
