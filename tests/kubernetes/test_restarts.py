"""The cluster's own programs are restarted, killed and frozen while sandboxes are at work."""

from contextlib import aclosing

import anyio
import pytest

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError, SandboxError
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider, _ends
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import Command, SandboxSpec
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.here import Box
from tests.kubernetes.soak import FAULTS, soak

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


async def test_a_frozen_kubelet_hangs_no_call_and_its_node_is_lost_until_it_returns(
    own_cluster: Cluster, provider: KubernetesProvider
) -> None:
    kept, lost = [await provider.create(SandboxSpec()) for _ in range(2)]
    errors: list[SandboxError] = []

    runs = anyio.Event()

    async def output(stream: StreamName, data: bytes) -> None:
        runs.set()

    async def call(provider: KubernetesProvider) -> None:
        try:
            await provider.exec(kept, Command(("sh", "-c", "echo runs; sleep 600")), output)
        except SandboxError as error:
            errors.append(error)

    async def seen(sandbox_id: str) -> PodStatus:
        return PodStatus(await provider._pod(sandbox_id))

    async with (
        aclosing(KubernetesProvider(timeout=3, start_timeout=4)) as impatient,
        anyio.create_task_group() as group,
    ):
        assert (await Box(impatient, kept).run("true"))[0] == 0
        group.start_soon(call, impatient)
        await runs.wait()
        for each in (kept, lost):  # a node tells of a start up to a second later
            while not _ends.is_running(await seen(each)):
                await anyio.sleep(0.1)
        with own_cluster.frozen("kubelet"), anyio.fail_after(180):
            with pytest.raises((ProviderUnavailableError, OutcomeUnknownError)):
                await Box(impatient, kept).run("true")
            with pytest.raises(ProviderUnavailableError):
                await impatient.create(SandboxSpec())
            for each in (kept, lost):
                while not _ends.is_lost(await seen(each)):
                    await anyio.sleep(0.5)
            assert not _ends.has_ended(await seen(kept))
            assert "its node does not report" in str(
                _ends.end_error(await seen(kept), sandbox_id=kept)
            )
            await impatient.delete(lost)  # a pod of a lost node is removed without its answer
        with anyio.fail_after(60):
            while _ends.is_lost(await seen(kept)):
                await anyio.sleep(0.5)
    assert [type(error) for error in errors] == [OutcomeUnknownError]
    await provider.delete(kept)


async def test_each_fault_in_turn_loses_no_command_and_leaves_nothing(
    own_cluster: Cluster, room: str
) -> None:
    """Half a minute is enough for one turn; `make nightly` goes on for half an hour."""
    found = await soak(own_cluster, room, seconds=30, seed=1)
    assert (found.wrong, found.left) == ([], []), found.table()
    assert found.faults.keys() == set(FAULTS)
    assert found.commands > 50
