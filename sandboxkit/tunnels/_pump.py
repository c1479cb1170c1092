"""Copies data between a connection to a sandbox and a connection of this machine."""

import asyncio
import socket
import struct

import anyio
from anyio.abc import ByteStream

from sandboxkit.provider import close_in_forks
from sandboxkit.tunnels._connection import CHUNK_BYTES

_INWARD_BYTES = 4 * CHUNK_BYTES
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def guard(writer: asyncio.StreamWriter) -> None:
    """Make forked children close a connection, because they would otherwise keep it open."""
    close_in_forks(writer.get_extra_info("socket"))


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, so that the peer does not mistake it for a normal end."""
    raw: socket.socket = writer.get_extra_info("socket")
    if raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


async def join(
    stream: ByteStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy both ways until both directions have ended, and close both connections.

    If one connection breaks, the other is reset. Raises BrokenResourceError or SandboxError if the
    sandbox's connection breaks, and OSError if this machine's does.
    """
    proper = False
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_outward, stream, reader)
            await _inward(stream, writer)
        writer.close()
        await writer.wait_closed()
        proper = True
    finally:
        if not proper:
            reset(writer)
        await stream.aclose()


async def _outward(stream: ByteStream, reader: asyncio.StreamReader) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            await stream.send(data)
        await stream.send_eof()
    except anyio.BrokenResourceError:
        pass  # the program reads no more, but data that it sent before may still arrive


async def _inward(stream: ByteStream, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(await stream.receive(_INWARD_BYTES))
            await writer.drain()
    except anyio.EndOfStream:
        writer.write_eof()
