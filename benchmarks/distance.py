"""A proxy that simulates network latency to a server, and counts the bytes it forwards."""

import asyncio
import socket
import threading
from collections import deque
from typing import Self

_RECEIVE_BYTES = 1 << 18


class Distance:
    """Forwards a local port to `host:port` with a round-trip time of `latency` seconds.

    Opening a connection takes a round trip, and each byte half of one, in both directions. The
    bandwidth is not limited, and there is no TLS.
    """

    def __init__(self, host: str, port: int, latency: float) -> None:
        self._target, self._latency = (host, port), latency
        self.bytes_up = self.bytes_down = 0
        """Bytes received from clients, and bytes received from the server."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        starting = asyncio.start_server(self._begin, sock=listener)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(near, back))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._latency)
        far, away = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.create_task(self._carry(near, away, up=True)),
            asyncio.create_task(self._carry(far, back, up=False)),
        ]
        try:
            await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            back.close()
            away.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        due: deque[tuple[float, bytes]] = deque()
        more = asyncio.Event()

        async def deliver() -> None:
            while True:
                while not due:
                    more.clear()
                    await more.wait()
                at, data = due.popleft()
                await asyncio.sleep(at - loop.time())
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            data = b"-"
            while data and not delivering.done():
                data = await reader.read(_RECEIVE_BYTES)
                if up:
                    self.bytes_up += len(data)
                else:
                    self.bytes_down += len(data)
                due.append((loop.time() + self._latency / 2, data))
                more.set()
            await delivering
            writer.write_eof()
        except OSError:
            pass  # the other direction closes the connection
        finally:
            delivering.cancel()
