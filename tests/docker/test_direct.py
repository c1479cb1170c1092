"""The way past the daemon into the agent's socket: for the host's root, and nobody inside."""

import os

import anyio
import pytest

from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers._agent import frames, requests
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.providers.docker._container import AGENT_SOCKET
from sandboxkit.types import SandboxSpec
from tests.components import needs_root
from tests.docker.conftest import SOCKET, Box
from tests.docker.tcp_bridge import TcpBridge

pytestmark = pytest.mark.anyio

# Prints what the agent answers to a well-formed greeting: nothing, to one who is not welcome.
KNOCK = f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.connect("\\0{AGENT_SOCKET[1:]}")
s.settimeout(60)
try:
    s.sendall({frames.encode(frames.Kind.HELLO, 0, requests.hello(None))!r})
    print(s.recv(100))
except (BrokenPipeError, ConnectionResetError):
    print(b"")
"""


@needs_root("only root may enter a network namespace")
async def test_root_talks_to_the_agent_past_the_daemon(provider: DockerProvider, tag: str) -> None:
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
    try:
        known = provider._known(sandbox_id)
        assert await Box(provider, sandbox_id).run("echo", "hello") == (0, "hello\n", "")
        assert known.client is not known.lifeline
    finally:
        await provider.delete(sandbox_id)
    assert not provider._instances
    with pytest.raises(SandboxNotFoundError):
        await Box(provider, sandbox_id).run("true")


async def test_the_agents_process_is_found_without_the_daemon(
    provider: DockerProvider, tag: str
) -> None:
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
    try:
        await Box(provider, sandbox_id).run("sh", "-c", "sleep 1000 > /dev/null 2>&1 &")
        shown = ["docker", "inspect", "--format", "{{.State.Pid}}", sandbox_id]
        inspected = (await anyio.run_process(shown)).stdout
        assert provider._agent_pid(provider._known(sandbox_id)) == int(inspected)
    finally:
        await provider.delete(sandbox_id)
    assert provider._agent_pid(provider._known(sandbox_id)) is None


async def test_another_machines_daemon_is_not_bypassed(daemon: None, tag: str) -> None:
    with TcpBridge(SOCKET) as bridge:
        provider = DockerProvider(base_url=bridge.url)
        try:
            sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
            for _ in range(5):
                assert await Box(provider, sandbox_id).run("echo", "hello") == (0, "hello\n", "")
            known = provider._known(sandbox_id)
            assert known.client is known.lifeline
            await provider.delete(sandbox_id)
        finally:
            await provider.aclose()


async def test_a_process_that_is_not_the_containers_is_not_entered() -> None:
    assert await _direct.connect(os.getpid(), "0" * 64, AGENT_SOCKET) is None
    assert await _direct.connect(2**22 + 1, "0" * 64, AGENT_SOCKET) is None


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_a_program_in_the_sandbox_is_refused_by_the_agent(
    provider: DockerProvider, tag: str, user: str
) -> None:
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}, user=user))
    try:
        assert await Box(provider, sandbox_id).python(KNOCK) == "b''"
    finally:
        await provider.delete(sandbox_id)
