"""The kubernetes provider shows every behaviour, on a real cluster."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sandboxkit import SandboxTerminatedError, Session
from sandboxkit.providers.kubernetes._exec import PodExecStream
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from tests.conformance.hooks import AgentHooks, RefusesPids, StoppedHooks
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


class KubernetesHooks(AgentHooks, StoppedHooks, RefusesPids):
    """The pod's first process is stopped on its node, which is this machine; the connection of its
    exec call breaks."""

    namespace = ""

    def connection(self, stream: Any) -> Any:
        assert isinstance(stream, PodExecStream)
        return stream._socket

    def process(self, sandbox_id: str) -> int:
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

    # What Kubernetes makes impossible is refused, by the name of the option.

    def test_a_full_disk_is_a_file_error(self, session: Session, large: Path) -> None:
        sandbox = session.sandbox(disk_mb=16).start().result(DEADLINE)
        sandbox.upload(large, "/workspace/file").result(DEADLINE)
        with pytest.raises(SandboxTerminatedError, match="exceeded its disk limit") as caught:
            sandbox.exec(["sleep", "1000"]).result(120)
        assert caught.value.out_of_memory
