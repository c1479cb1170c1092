"""The kubernetes provider shows every behaviour, on a real cluster."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sandboxkit import ConfigurationError, Operation, SandboxTerminatedError, Session
from sandboxkit.provider import Provider
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE, Conformance
from tests.conformance.hooks import _shut
from tests.kubernetes.here import IMAGE, new_claim, new_namespace, require_cluster

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="class", autouse=True)
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A namespace of the class's own, with a claim for datasets and volumes."""
    with (
        new_namespace() as name,
        new_claim(require_cluster(), name, tmp_path_factory.mktemp("claim")) as claim,
        mock.patch.dict(os.environ, {"SANDBOXKIT_KUBERNETES_STORAGE_CLAIM": claim}),
    ):
        KubernetesHooks.namespace = name
        yield


class KubernetesHooks(Conformance):
    """The pod's first process is stopped on its node, which is this machine; the connection of its
    exec call breaks."""

    namespace = ""

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        os.kill(self._agent(sandbox_id), signal.SIGSTOP)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        os.kill(self._agent(sandbox_id), signal.SIGCONT)

    def cut(self, provider: Provider, sandbox_id: str) -> None:
        assert isinstance(provider, KubernetesProvider)

        async def shut() -> None:
            client = provider._known(sandbox_id).client
            assert client is not None
            stream = client._link._stream
            assert isinstance(stream, PodExecStream)
            assert stream._socket is not None
            _shut(os.dup(stream._socket.fileno()))

        Operation(shut()).result(DEADLINE)

    def _agent(self, sandbox_id: str) -> int:
        """The pid on this machine of the pod's first process."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{sandbox_id}"
        uid: str = require_cluster().request("GET", path)["metadata"]["uid"]
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                inside = status.read_text().partition("\nNSpid:\t")[2].partition("\n")[0].split()
                group = status.with_name("cgroup").read_text()
                command = status.with_name("cmdline").read_bytes()
            except OSError:  # it ended
                continue
            if uid in group and inside[-1:] == ["1"] and b"--listen-path" in command:
                return int(status.parent.name)
        raise AssertionError(f"no agent runs in {sandbox_id}")


class TestKubernetes(KubernetesHooks, ProviderConformance):
    """A pod has no limit of processes: its node has one, which nobody can ask for here. A disk that
    is full is no error of a file: the node ends the pod."""

    silence_bound = 30.0
    """7 s of silence until another connection is tried and 7 s on that; then a node may be asked."""

    spec = "sandboxkit.providers.kubernetes:KubernetesProvider"
    image = IMAGE
    other_user = "nobody"

    @classmethod
    def make_provider(cls) -> Provider:
        return KubernetesProvider()

    # What Kubernetes makes impossible is refused, by the name of the option.

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match="pids=64"):
            session.sandbox(pids=64)

    def test_a_full_disk_is_a_file_error(self, session: Session, large: Path) -> None:
        sandbox = session.sandbox(disk_mb=16).start().result(DEADLINE)
        sandbox.upload(large, "/workspace/file").result(DEADLINE)
        with pytest.raises(SandboxTerminatedError, match="exceeded its disk limit") as caught:
            sandbox.exec(["sleep", "1000"]).result(120)
        assert caught.value.out_of_memory
