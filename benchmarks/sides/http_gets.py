"""A small HTTP server, as a program, and clients that ask it on connections that stay open."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.sides.serve import expect

SERVER = """
import asyncio

ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello"

async def answer(reader, writer):
    try:
        while True:
            await reader.readuntil(b"\\r\\n\\r\\n")
            writer.write(ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""Prints its port, then answers every request with `hello`."""

SENDER = """
import socket, sys
size, block = int(sys.argv[1]), bytes(1 << 18)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    with server.accept()[0] as to:
        for at in range(0, size, len(block)):
            to.sendall(block[:size - at])
"""
"""Prints its port, then sends so many bytes on each connection."""


@contextmanager
def gets(port: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that makes one GET; threads that call it at once have a connection each."""
    idle: list[http.client.HTTPConnection] = []

    def one(_: int) -> None:
        try:
            connection = idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        with connection.getresponse() as answer:
            expect("status and body", (answer.status, answer.read()), (200, b"hello"))
        idle.append(connection)

    try:
        yield one
    finally:
        for connection in idle:
            connection.close()
