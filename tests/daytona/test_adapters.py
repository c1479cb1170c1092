"""Adapters take relative paths from where a sandbox's commands start, which is not always /workspace."""

import pytest
from agents.sandbox.session import SandboxSession
from inspect_ai.util import SandboxEnvironment
from mcp.types import CallToolResult, TextContent

from sandboxkit import Session
from sandboxkit.integrations import mcp
from sandboxkit.integrations.inspect import SandboxkitConfig, SandboxkitSandboxEnvironment
from sandboxkit.integrations.openai_agents import SandboxkitClient

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("rooted")]

HOME = "/home/daytona/workspace"
"""Where commands start in an image whose user cannot make /workspace."""


async def test_inspect() -> None:
    config = SandboxkitConfig(provider="daytona")
    made = await SandboxkitSandboxEnvironment.sample_init("test", config, {})
    try:
        environment: SandboxEnvironment = made["default"]
        await environment.write_file("folder/file", "text")
        assert await environment.read_file(f"{HOME}/folder/file") == "text"
        assert (await environment.exec(["cat", "file"], cwd="folder")).stdout == "text"
    finally:
        await SandboxkitSandboxEnvironment.sample_cleanup("test", config, made, False)


async def test_mcp() -> None:
    async with Session("daytona") as session:
        server = mcp.build(session)
        await server.call_tool("write_file", {"path": "folder/file", "content": "text"})
        answer = await server.call_tool("exec", {"command": f"cat {HOME}/folder/file"})
        assert isinstance(answer, CallToolResult)
        assert isinstance(answer.content[0], TextContent)
        assert "text" in answer.content[0].text


async def test_openai_agents() -> None:
    async with Session("daytona") as session:
        made: SandboxSession = await SandboxkitClient(session).create()
        assert made.state.manifest.root == HOME
