"""Claims on a warm pool show every behaviour, in pods of a real cluster."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sandboxkit import ConfigurationError, Operation, Sandbox
from sandboxkit.provider import Box
from sandboxkit.providers._hosted.install import Found
from sandboxkit.providers.kubernetes._exec import PodProgram
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from sandboxkit.types import SandboxSpec
from tests.conformance.hooks import AgentHooks, RefusesLimits
from tests.kubernetes.agent_sandbox import POOL, warm_pool
from tests.kubernetes.here import new_namespace, require_cluster

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="class", autouse=True)
def pool() -> Iterator[None]:
    """Keep a warm pool for the class, from which providers without arguments claim their sandboxes."""
    with (
        new_namespace() as namespace,
        mock.patch.dict(os.environ, {"SANDBOXKIT_KUBERNETES_CLAIMS": POOL}),
        warm_pool(require_cluster(), namespace, replicas=2),
    ):
        yield


class ClaimHooks(AgentHooks, RefusesLimits):
    """The whole container is frozen on its node, which is this machine; the connection of the exec call
    that leads to the agent breaks."""

    def freeze(self, box: Box) -> None:
        self._set(box.id, "FROZEN", "1")

    def thaw(self, box: Box) -> None:
        self._set(box.id, "THAWED", "0")

    def connection(self, stream: Any) -> Any:
        assert isinstance(stream, Found)
        assert isinstance(stream._stream, PodProgram)
        return stream._stream.stream._socket

    def _set(self, sandbox_id: str, first: str, second: str) -> None:
        """Set the state of the container's control group, of version 1 or 2."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                groups = (process / "cgroup").read_text()
            except OSError:  # it ended
                continue
            if b"-listen-path=@" in command and sandbox_id.encode() in command:
                root = Path("/sys/fs/cgroup")
                old = groups.partition(":freezer:")[2].partition("\n")[0].lstrip("/")
                if old:
                    (root / "freezer" / old / "freezer.state").write_text(first)
                else:
                    group = groups.partition("0::")[2].strip().lstrip("/")
                    (root / group / "cgroup.freeze").write_text(second)
                return
        raise AssertionError(f"no agent runs in {sandbox_id}")


class TestKubernetesClaims(ClaimHooks, ProviderConformance):
    """The template describes the pods: image, limits and network cannot be asked for."""

    silence_bound = 30.0
    """7 s of silence until another connection is tried and 7 s on that; then a node may be asked."""
    spec = "sandboxkit.providers.kubernetes:KubernetesProvider"

    # The template's policy decides about the network, which this cluster does not enforce.

    def test_network_none_has_a_loopback_interface_only(self, shared: Sandbox) -> None:
        with pytest.raises(ConfigurationError, match="network='internet'"):
            Operation(shared._provider.create(SandboxSpec(network="internet"))).result(DEADLINE)

    def test_network_none_fails_at_once(self, shared: Sandbox) -> None:
        self.test_network_none_has_a_loopback_interface_only(shared)

    def test_the_first_process_cannot_be_traced_or_read(self, shared: Sandbox) -> None:
        """The first process is the template's and holds nothing; the agent runs beside it."""
        assert shared.exec(["cat", "/proc/1/comm"]).result(DEADLINE).stdout == "sleep\n"
