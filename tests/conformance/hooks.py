"""How each kind of backend falls silent, and how connections to it break."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from anyio.abc import SocketAttribute

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.provider import Box, Provider
from sandboxkit.providers._agent.box import AgentBox
from sandboxkit.providers.local._state import StateDir
from sandboxkit.testing.conformance._base import DEADLINE, Conformance
from tests.hosted.vendor import Vendor


class Hooks(Conformance):
    """The provider is the one that other processes load."""

    @classmethod
    def make_provider(cls) -> Provider:
        module, _, name = cls.spec.partition(":")
        provider: Provider = getattr(import_module(module), name)()
        return provider


class FakeHooks(Hooks):
    """FakeProvider falls silent and breaks its connections when it is told to."""

    # Any: a FakeBox.
    def freeze(self, box: Any) -> None:
        Operation(box.freeze()).result(DEADLINE)

    def thaw(self, box: Any) -> None:
        Operation(box.thaw()).result(DEADLINE)

    def cut(self, box: Any) -> None:
        Operation(box.cut()).result(DEADLINE)


class StoppedHooks(Hooks):
    """A process of this machine is stopped, on which the sandbox's commands depend."""

    def freeze(self, box: Box) -> None:
        pid = self.process(box.id)
        os.kill(pid, signal.SIGSTOP)
        # Its threads run on until the kernel has told each of them, which takes a while on a busy machine.
        tasks = Path(f"/proc/{pid}/task")
        while any(") T " not in (each / "stat").read_text() for each in tasks.iterdir()):
            time.sleep(0.001)

    def thaw(self, box: Box) -> None:
        os.kill(self.process(box.id), signal.SIGCONT)

    def process(self, sandbox_id: str) -> int:
        """Return its pid."""
        raise NotImplementedError


class AgentHooks(Hooks):
    """The connection that carries the commands breaks; the owner's, where that is another, holds."""

    def cut(self, box: Box) -> None:
        assert isinstance(box, AgentBox)
        client = box.client
        assert client is not None

        async def shut() -> None:
            _shut(os.dup(self.connection(client._link._stream).fileno()))

        Operation(shut()).result(DEADLINE)

    # Any: each provider's stream, and what has a descriptor.
    def connection(self, stream: Any) -> Any:
        """Return the socket of an agent's stream."""
        return stream.extra(SocketAttribute.raw_socket)


class LocalHooks(AgentHooks, StoppedHooks):
    """The agent is stopped from outside; the sandbox's commands run on."""

    def process(self, sandbox_id: str) -> int:
        meta = StateDir().load(sandbox_id)
        assert meta is not None
        return [*meta.processes][-1]


class DockerHooks(AgentHooks):
    """The whole container stands still."""

    def freeze(self, box: Box) -> None:
        subprocess.run(["docker", "pause", box.id], check=True, capture_output=True)

    def thaw(self, box: Box) -> None:
        subprocess.run(["docker", "unpause", box.id], check=True, capture_output=True)


class VendorHooks(StoppedHooks):
    """The vendor is a process of this machine, an emulator, which TCP leads to."""

    vendor: ClassVar[tuple[int, str]]
    """Its pid and its address."""
    silence_bound = 25.0
    """7 s of silence until another connection is tried, 7 s on that, a last look; the rest is load."""

    def process(self, sandbox_id: str) -> int:
        return self.vendor[0]

    def cut(self, box: Box) -> None:
        port = urlsplit(self.vendor[1]).port
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # it is no connection, or closed by now
                if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                    copy = os.dup(int(name))
                    _shut(copy, port)


class RefusesPids(Conformance):
    """A backend that bounds no sandbox's processes."""

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        self.test_pids_bounds_the_processes(session)


class RefusesLimits(RefusesPids):
    """A backend that gives every sandbox the limits of its image: those cannot be asked for."""

    def test_memory_is_bounded(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="memory_mb=128"):
            session.sandbox(memory_mb=128)


class HostedHooks(VendorHooks, RefusesLimits):
    """A hosted vendor, at its emulator."""

    hosted: ClassVar[Vendor]
    snapshot_profiles = ("standard",)
    """The emulators' machines have no root, which strict needs; the vendors' folders have some that do."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def emulator(cls) -> Iterator[None]:
        with cls.hosted.running() as server:
            VendorHooks.vendor = server.process.pid, server.url
            yield


def _shut(descriptor: int, port: int | None = None) -> None:
    """Break a connection, if it leads to that port; the descriptor is closed."""
    with socket.socket(fileno=descriptor) as copy:
        if port is None or (copy.family == socket.AF_INET and copy.getpeername()[1] == port):
            copy.shutdown(socket.SHUT_RDWR)
