"""`sandboxkit mcp` as clients start it: by the protocol's own client, or by hand."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, TextContent

COMMAND = ("-m", "sandboxkit", "mcp")


@pytest.fixture
def tag() -> str:
    return f"mcp-test:{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def connected(*options: str) -> AsyncIterator[ClientSession]:
    server = StdioServerParameters(
        command=sys.executable, args=[*COMMAND, *options], env=dict(os.environ)
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()
        yield client


def text(answer: CallToolResult) -> str:
    parts = [part for part in answer.content if isinstance(part, TextContent)]
    return "\n".join(part.text for part in parts)


@contextmanager
def by_hand(*options: str) -> "Iterator[subprocess.Popen[str]]":
    """A server that waits for requests, killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, *COMMAND, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            ours: dict[str, object] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "hand", "version": "1"},
            }
            assert "result" in ask(process, "initialize", ours)
            send(process, {"method": "notifications/initialized"})
            try:
                yield process
            finally:
                process.kill()
    finally:
        process.kill()


def call(process: "subprocess.Popen[str]", name: str, **arguments: object) -> dict[str, object]:
    return ask(process, "tools/call", {"name": name, "arguments": arguments})


def ask(
    process: "subprocess.Popen[str]", method: str, params: dict[str, object]
) -> dict[str, object]:
    number = uuid.uuid4().hex
    send(process, {"id": number, "method": method, "params": params})
    for line in _stream(process.stdout):
        answer: dict[str, object] = json.loads(line)
        if answer.get("id") == number:
            return answer
    pytest.fail(f"the server ended before it answered {method}")


def send(process: "subprocess.Popen[str]", message: dict[str, object]) -> None:
    stream = _stream(process.stdin)
    stream.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    stream.flush()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
