"""The proxy itself: where it listens, and how a test switches it while it runs."""

import asyncio
import itertools
import os
import shutil
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Literal, Self
from urllib.parse import urlsplit

from tests.faults._connection import CHUNK, Connection, Gate
from tests.faults._plan import Direction, Fault, Plan, Request

_SECONDS = 60.0
Connect = Callable[[], Coroutine[object, object, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class FaultProxy:
    """Stands between a client and a server, on a unix or a TCP socket, and breaks things.

    `upstream` is the server: "unix:///run/server.sock", "tcp://127.0.0.1:2375" or an http URL.
    It listens on the same kind of socket, or on the one that `listen` names; `url` then leads to
    it. `plan` is asked at the beginning of each HTTP/1 request, and once for each connection that
    is something else; a request that upgrades its connection (a terminal, `docker attach`) is
    the last one on it. Without a plan everything passes, until `stall()` or `reset()`.

    It is a context manager, and works on a thread of its own: every method may be called from any
    thread, and holds for what arrives after it has returned.

    It is no kinder than a network: an end that is only half closed stays half closed, a reader
    that is slow slows the writer, and what is on its way in a stall arrives when it is healed.
    A reset over a unix socket is what the kernel makes of it: the end of the stream, or
    ECONNRESET where there was unread input. TLS passes, unread, as bytes.
    """

    def __init__(
        self,
        upstream: str,
        *,
        plan: Plan | None = None,
        listen: Literal["unix", "tcp"] | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        """On a TCP socket it may speak TLS to its clients, and listen on a `port` that was another one's."""
        self._scheme, self._reach = _parse(upstream)
        self._listen = listen or ("unix" if self._scheme == "unix" else "tcp")
        self._tls, self._port = tls, port
        self.plan = plan
        """May be set at any time; it holds for the requests that follow."""
        self.url = ""
        self.faults: Counter[str] = Counter()
        """How often each kind of fault was chosen by a plan, and how many connections a call of
        `stall()` or `reset()` found open."""
        self._open: set[Connection] = set()
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._gate: Gate
        self._stop: asyncio.Event
        self._folder: str | None = None

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    def stall(self, direction: Direction = "both") -> None:
        """Let nothing pass on any connection, new ones included, and keep them all open."""

        def stall() -> None:
            self._gate.close(direction)
            self.faults["stall()"] += len(self._open)

        self._do(stall)

    def abandon(self) -> None:
        """Let nothing pass any more on the connections that are open now; new ones are not affected."""

        def abandon() -> None:
            self.faults["abandon()"] += len(self._open)
            self._gate.close("both")
            self._gate = Gate()

        self._do(abandon)

    def resume(self) -> None:
        """End a `stall()`; what is planned stays so."""
        self._do(lambda: self._gate.open())

    def heal(self) -> None:
        """End every stall, planned ones too, and plan no further fault."""
        self.plan = None
        self._do(lambda: self._gate.heal())

    def reset(self) -> None:
        """Break every connection that is open now."""

        def reset() -> None:
            self.faults["reset()"] += len(self._open)
            for connection in list(self._open):
                connection.reset()

        self._do(reset)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="fault proxy", daemon=True
        )
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._thread is not None
        self._do(lambda: self._stop.set())
        self._thread.join()

    def _do(self, action: Callable[[], object]) -> None:
        """Run it on the proxy's thread, and return when it has run."""
        if threading.current_thread() is self._thread:
            action()
            return
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        if not done.wait(_SECONDS):
            raise TimeoutError("the fault proxy's thread does not answer: its plan must not block")

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate, self._stop = Gate(), asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connect(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        try:
            try:
                server = await self._listening(accepted)
            finally:
                ready.set()
            await self._stop.wait()
            server.close()
            for connection in list(self._open):
                connection.reset()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    async def _listening(
        self, accepted: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
    ) -> asyncio.Server:
        if self._listen == "unix":
            self._folder = tempfile.mkdtemp(prefix="faults-")
            path = os.path.join(self._folder, "proxy.sock")
            self.url = f"unix://{path}"
            return await asyncio.start_unix_server(accepted, path, limit=CHUNK)
        server = await asyncio.start_server(
            accepted, "127.0.0.1", self._port, limit=CHUNK, ssl=self._tls
        )
        scheme = "tcp" if self._scheme == "unix" else self._scheme
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await self._reach()
        except OSError:
            writer.transport.abort()
            return
        connection = Connection((reader, writer), far, self._gate, self._choose)
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)

    def _choose(self, line: str) -> Fault | None:
        request = Request(next(self._numbers), line)
        fault = None if self.plan is None else self.plan(request)
        if fault is not None:
            self.faults[type(fault).__name__] += 1
        return fault


def _parse(url: str) -> tuple[str, Connect]:
    """Return the scheme of the real server's address, and how to connect to it."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return "unix", lambda: asyncio.open_unix_connection(parts.path, limit=CHUNK)
    return parts.scheme, lambda: asyncio.open_connection(parts.hostname, parts.port, limit=CHUNK)
