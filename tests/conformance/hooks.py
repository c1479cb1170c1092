"""How each kind of backend falls silent, and how connections to it break."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from anyio.abc import SocketAttribute

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.provider import Provider
from sandboxkit.providers._agent.provider import AgentProvider
from sandboxkit.providers.local._state import StateDir
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import DEADLINE, Conformance


class FakeHooks(Conformance):
    """FakeProvider does both when it is told to."""

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        assert isinstance(provider, FakeProvider)
        Operation(provider.freeze(sandbox_id)).result(DEADLINE)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        assert isinstance(provider, FakeProvider)
        Operation(provider.thaw(sandbox_id)).result(DEADLINE)

    def cut(self, provider: Provider, sandbox_id: str) -> None:
        assert isinstance(provider, FakeProvider)
        Operation(provider.cut(sandbox_id)).result(DEADLINE)


class AgentHooks(Conformance):
    """The connection that carries the commands breaks; the owner's, where that is another, holds."""

    def cut(self, provider: Provider, sandbox_id: str) -> None:
        assert isinstance(provider, AgentProvider)

        async def shut() -> None:
            client = provider._known(sandbox_id).client
            assert client is not None
            stream = client._link._stream
            assert stream is not None
            connection = os.dup(stream.extra(SocketAttribute.raw_socket).fileno())
            _shut(connection)

        Operation(shut()).result(DEADLINE)


class LocalHooks(AgentHooks):
    """The agent is stopped from outside; the sandbox's commands run on."""

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        os.kill(_agent(sandbox_id), signal.SIGSTOP)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        os.kill(_agent(sandbox_id), signal.SIGCONT)


class DockerHooks(AgentHooks):
    """The whole container stands still."""

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        subprocess.run(["docker", "pause", sandbox_id], check=True, capture_output=True)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        subprocess.run(["docker", "unpause", sandbox_id], check=True, capture_output=True)


class VendorHooks(Conformance):
    """The vendor is a process of this machine, an emulator, which TCP leads to."""

    vendor: ClassVar[tuple[int, str]]
    """Its pid and its address."""
    silence_bound = 25.0
    """7 s of silence until another connection is tried, 7 s on that, a last look; the rest is load."""

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        os.kill(self.vendor[0], signal.SIGSTOP)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        os.kill(self.vendor[0], signal.SIGCONT)

    def cut(self, provider: Provider, sandbox_id: str) -> None:
        port = urlsplit(self.vendor[1]).port
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # it is no connection, or closed by now
                if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                    copy = os.dup(int(name))
                    _shut(copy, port)


class HostedHooks(VendorHooks):
    """A vendor that gives every sandbox the limits of its image: those cannot be asked for."""

    snapshot_profiles = ("standard",)
    """The emulators' machines have no root, which strict needs; the vendors' folders have some that do."""

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        self.test_pids_bounds_the_processes(session)

    def test_memory_is_bounded(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="memory_mb=128"):
            session.sandbox(memory_mb=128)


def _agent(sandbox_id: str) -> int:
    meta = StateDir().load(sandbox_id)
    assert meta is not None
    return [*meta.processes][-1]


def _shut(descriptor: int, port: int | None = None) -> None:
    """Break a connection, if it leads to that port; the descriptor is closed."""
    with socket.socket(fileno=descriptor) as copy:
        if port is None or (copy.family == socket.AF_INET and copy.getpeername()[1] == port):
            copy.shutdown(socket.SHUT_RDWR)
