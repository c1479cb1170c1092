"""The docker and local providers show every behaviour with gVisor, or a stated difference."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Sandbox, SandboxTerminatedError, Session
from sandboxkit.provider import FirstCommand, Provider
from sandboxkit.providers._gvisor import SOCKET_FOLDER
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.local import LocalProvider, _gvisor
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from sandboxkit.testing.conformance.isolation import python
from sandboxkit.types import SandboxSpec, SnapshotKind
from tests.components import lack, reason
from tests.conformance.conftest import CHOSEN
from tests.conformance.hooks import DockerHooks, LocalHooks
from tests.docker_here import TEST_IMAGE, require_gvisor

IMAGE = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", TEST_IMAGE)


class Gvisor(ProviderConformance):
    """The contract, and what gVisor does otherwise."""

    @pytest.fixture(autouse=True)
    def stated(self, request: pytest.FixtureRequest) -> None:
        if reason := CHOSEN["gvisor_differs"].get(request.function.__name__):
            pytest.skip(reason)

    def test_the_first_process_cannot_be_traced_or_read(self, shared: Sandbox) -> None:
        # gVisor shows its environment, which is the image's, its addresses, and the names of its descriptors.
        # What it alone has can be neither opened nor reached.
        program = Path(__file__).with_name("first_process.txt").read_text()
        code = program.replace("SOCKET_FOLDER", SOCKET_FOLDER)
        assert python(shared, code) == "refused\nrefused\nrefused"

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64).start().result(DEADLINE)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        code = Path(__file__).with_name("fork_bomb.txt").read_text()
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

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        return await super().create(replace(spec, isolation="gvisor"), first)


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

    def process(self, sandbox_id: str) -> int:
        """Return the pid of gVisor's kernel, one of the children of the sandbox's first process."""
        threads = Path(f"/proc/{super().process(sandbox_id)}/task").iterdir()
        children = (pid for thread in threads for pid in (thread / "children").read_text().split())
        (kernel,) = (
            pid for pid in children if b"\0boot\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return int(kernel)
