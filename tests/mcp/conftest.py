"""`sandboxkit mcp` as clients start it: by the protocol's own client, or by hand."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

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
    command = [sys.executable, *COMMAND, *options]
    ours = {"protocolVersion": "2025-06-18", "clientInfo": {"name": "hand", "version": "1"}}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert "result" in ask(process, "initialize", {**ours, "capabilities": {}})
            send(process, {"method": "notifications/initialized"})
            yield process
        finally:
            process.kill()


def call(process: "subprocess.Popen[str]", command: str) -> None:
    """Run a command by the tool `exec`, and wait for the answer."""
    ask(process, "tools/call", {"name": "exec", "arguments": {"command": command}})


def ask(
    process: "subprocess.Popen[str]", method: str, params: dict[str, object]
) -> dict[str, object]:
    number = uuid.uuid4().hex
    send(process, {"id": number, "method": method, "params": params})
    assert process.stdout is not None
    answers: Iterator[dict[str, object]] = map(json.loads, process.stdout)
    return next(each for each in answers if each.get("id") == number)


def send(process: "subprocess.Popen[str]", message: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()
