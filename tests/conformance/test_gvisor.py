"""The docker and local providers show every behaviour with gVisor, or a stated difference."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Sandbox, SandboxTerminatedError, Session
from sandboxkit.provider import Provider
from sandboxkit.providers._gvisor import SOCKET_FOLDER
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.local import LocalProvider, _gvisor
from sandboxkit.providers.local._state import StateDir
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from sandboxkit.testing.conformance.isolation import python
from sandboxkit.types import SandboxSpec, SnapshotKind
from tests.components import lack, reason
from tests.conformance.hooks import DockerHooks, LocalHooks
from tests.docker_here import TEST_IMAGE, require_gvisor

IMAGE = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)


DIFFERS = {
    "test_a_setup_writes_files_and_lowers_limits": "`ls -l` fails in Debian 12's gVisor",
    "test_a_terminal_keeps_what_its_commands_leave": "Debian 12's gVisor refuses the shell to read its terminal",
    "test_kill_overtakes_a_hundred_that_fork": "gVisor does not bound processes: they end the sandbox",
    "test_out_of_memory_is_distinguished_from_a_signal": "it ends the sandbox: test_memory_is_bounded",
    "test_pty_passes_an_interrupt": "Debian 12's gVisor makes no signals of a terminal's keys",
    "test_snapshots_are_taken_or_refused_before_anything_is_made": "it starts from snapshots and takes none: "
    "tests/docker/test_gvisor.py",
    "test_variables_that_are_too_long_have_no_status": "gVisor takes longer variables than Linux",
}
"""Checks that do not hold with gVisor, each with the reason."""


class Gvisor(ProviderConformance):
    """The contract, and what gVisor does otherwise."""

    @pytest.fixture(autouse=True)
    def stated(self, request: pytest.FixtureRequest) -> None:
        """Skip a check that is known not to hold."""
        if reason := DIFFERS.get(request.function.__name__):
            pytest.skip(reason)

    def test_the_first_process_cannot_be_traced_or_read(self, shared: Sandbox) -> None:
        # gVisor shows its environment, which is the image's, its addresses, and the names of its descriptors.
        # What it alone has can be neither opened nor reached.
        code = f"""
import ctypes, errno, os, socket
assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1
denied = []
for number in os.listdir("/proc/1/fd"):
    path = f"/proc/1/fd/{{number}}"
    if os.readlink(path).startswith("host:"):  # its owner's stream
        for mode in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.open(path, mode | os.O_NONBLOCK)
            except OSError as error:
                assert error.errno in (errno.EACCES, errno.ENXIO), error  # ENXIO: a socket
                denied.append(path)
assert len(denied) >= 4, denied
for action in (lambda: open("/proc/1/mem", "rb"),
               lambda: os.listdir("{SOCKET_FOLDER}"),
               lambda: socket.socket(socket.AF_UNIX).connect("{SOCKET_FOLDER}/agent")):
    try:
        action()
    except PermissionError:
        print("refused")
"""
        assert python(shared, code) == "refused\nrefused\nrefused"

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64).start().result(DEADLINE)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        code = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
        with pytest.raises(SandboxTerminatedError) as caught:
            session.sandbox().exec(["python3", "-c", code], timeout=120).result(120)
        assert caught.value.by_command or caught.value.out_of_memory
        assert session.sandbox().exec(["echo", "usable"]).result(DEADLINE).stdout == "usable\n"

    def test_memory_is_bounded(self, session: Session) -> None:
        sandbox = session.sandbox(memory_mb=128).start().result(DEADLINE)
        with pytest.raises(SandboxTerminatedError) as caught:
            sandbox.exec(["python3", "-c", "data = b'x' * (1 << 30)"]).result(DEADLINE)
        assert caught.value.out_of_memory


class TestDocker(DockerHooks, Gvisor):
    spec = "sandboxkit.providers.docker:DockerProvider"
    image = IMAGE
    other_user = "nobody"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def daemon(cls) -> None:
        require_gvisor()

    @classmethod
    def make_provider(cls) -> Provider:
        return DockerProvider(runtime="runsc")


class GvisorProvider(LocalProvider):
    """Local sandboxes with gVisor, whatever the session asks for."""

    def check(self, spec: SandboxSpec) -> None:
        super().check(replace(spec, isolation="gvisor"))

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        super().check_snapshot(replace(spec, isolation="gvisor"), kind)

    async def create(self, spec: SandboxSpec) -> str:
        return await super().create(replace(spec, isolation="gvisor"))


class TestLocal(LocalHooks, Gvisor):
    spec = "tests.conformance.test_gvisor:GvisorProvider"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def runsc(cls) -> None:
        """Without gVisor or control groups the checks are skipped, or fail in CI."""
        try:
            GvisorProvider().check(SandboxSpec())
            _gvisor.find()
        except ConfigurationError as error:
            remedy = "install runsc, and run the tests as root"
            lack(reason("gVisor on local", remedy, str(error)), "DOCKER")

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        self._signal(sandbox_id, signal.SIGSTOP)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        self._signal(sandbox_id, signal.SIGCONT)

    def _signal(self, sandbox_id: str, number: int) -> None:
        """Send a signal to gVisor's kernel, which is a child of the sandbox's first process."""
        meta = StateDir().load(sandbox_id)
        assert meta is not None
        init = [*meta.processes][-1]
        for thread in Path(f"/proc/{init}/task").iterdir():
            for pid in (thread / "children").read_text().split():
                os.kill(int(pid), number)

    @classmethod
    def make_provider(cls) -> Provider:
        return GvisorProvider()
