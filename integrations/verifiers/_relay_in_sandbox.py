"""The sandbox's half of the relay; a program of its own, which nothing here imports. See `_relay`."""

import asyncio
import itertools
import json
import os
import struct
import sys
from collections.abc import Awaitable, Callable

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
FRAME = struct.Struct(">III")
LARGEST = 64 * 1024
connections: dict[int, asyncio.StreamWriter] = {}
numbers = itertools.count()


async def main() -> None:
    """Relay until the input ends."""
    loop = asyncio.get_running_loop()
    frames = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(frames), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(os.dup(1), "wb")
    )
    out, turn = asyncio.StreamWriter(transport, protocol, None, loop), asyncio.Lock()

    def serve(listener: int) -> Connected:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = next(numbers)
            connections[number] = writer
            try:
                while data := await reader.read(LARGEST):
                    async with turn:
                        out.write(FRAME.pack(number, listener, len(data)) + data)
                        await out.drain()
            except OSError:
                pass
            finally:
                out.write(FRAME.pack(number, listener, 0))
                connections.pop(number, None)
                writer.close()

        return connected

    servers = [
        await asyncio.start_server(serve(listener), "127.0.0.1", 0)
        for listener in range(int(sys.argv[1]))
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    out.write(json.dumps(ports).encode() + b"\n")
    while True:
        number, _, size = FRAME.unpack(await frames.readexactly(FRAME.size))
        data = await frames.readexactly(size)
        connection = connections.get(number)
        if connection is None:
            continue
        # Without waiting: this loop must go on, or both directions may wait for each other.
        if data:
            connection.write(data)
        else:
            connection.close()


try:
    asyncio.run(main())
except asyncio.IncompleteReadError:
    pass
