"""The cluster's own programs are restarted, killed and frozen while sandboxes are at work."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import anyio
import pytest

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError, SandboxError
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider
from sandboxkit.types import Command, SandboxSpec, SandboxState
from tests.kubernetes.cluster import Cluster, Program
from tests.kubernetes.rooms import Box, provider, room
from tests.kubernetes.soak import FAULTS, soak

__all__ = ["provider", "room"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

_SANDBOXES = 2
_COMMANDS = 5
_LINES = 60
_WORK = f"for n in $(seq {_LINES}); do echo $n; echo x >> ran-$0; sleep 0.2; done; exit $0"
_BACK = 60.0
"""Seconds in which a sandbox takes commands again after a restart, on a loaded machine."""


@pytest.fixture
async def boxes(own_cluster: Cluster, provider: KubernetesProvider) -> AsyncIterator[list[Box]]:
    made = [Box(provider, await provider.create(SandboxSpec())) for _ in range(_SANDBOXES)]
    yield made
    own_cluster.wait_until_ready()
    for box in made:
        await provider.delete(box.id)


async def work(box: Box, number: int) -> None:
    """A command of some seconds, whose every line must come, and which must run once."""
    assert await box.run("sh", "-c", _WORK, str(number)) == (
        number,
        "".join(f"{n}\n" for n in range(1, _LINES + 1)),
        "",
    )


async def until_back(box: Box) -> float:
    """How long it took until a command ran again, in seconds."""
    began = time.monotonic()
    while True:
        try:
            assert await box.run("echo", "back") == (0, "back\n", "")
        except (ProviderUnavailableError, OutcomeUnknownError):
            assert time.monotonic() - began < _BACK
            await anyio.sleep(0.2)
        else:
            return time.monotonic() - began


@pytest.mark.parametrize(
    "program",
    [
        "kubelet",
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in ("api", "containerd", "controllers", "etcd")
        ),
    ],
)
async def test_a_restart_under_load_loses_nothing(
    own_cluster: Cluster, boxes: list[Box], program: Program
) -> None:
    async with anyio.create_task_group() as group:
        for box in boxes:
            for number in range(_COMMANDS):
                group.start_soon(work, box, number)
        await anyio.sleep(3)
        await anyio.to_thread.run_sync(own_cluster.restart, program)
        for box in boxes:
            await until_back(box)
    for box in boxes:
        _, counts, _ = await box.run("sh", "-c", "cat ran-* | wc -l")
        assert int(counts) == _COMMANDS * _LINES
        assert (await box.provider.get(box.id)).state is SandboxState.RUNNING


async def test_a_killed_api_server_is_waited_for(own_cluster: Cluster, boxes: list[Box]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work, boxes[0], 0)
        await anyio.sleep(2)
        await anyio.to_thread.run_sync(own_cluster.kill, "api")
        await anyio.sleep(5)
        with pytest.raises(ProviderUnavailableError) as caught:
            await boxes[0].provider.get(boxes[0].id)
        assert caught.value.retryable
        await anyio.to_thread.run_sync(own_cluster.start, "api")
    await until_back(boxes[0])


async def test_a_frozen_kubelet_hangs_no_call(
    own_cluster: Cluster, provider: KubernetesProvider
) -> None:
    patient = Box(provider, await provider.create(SandboxSpec()))
    began = time.monotonic()
    errors: list[SandboxError] = []

    async def ignore(stream: StreamName, data: bytes) -> None:
        pass

    async def call(box: Box) -> None:
        try:
            await box.provider.exec(box.id, Command(("sleep", "600")), ignore)
        except SandboxError as error:
            errors.append(error)

    async with (
        aclosing(KubernetesProvider(timeout=6, start_timeout=8)) as impatient,
        anyio.create_task_group() as group,
    ):
        box = Box(impatient, patient.id)
        group.start_soon(call, box)
        await anyio.sleep(1)
        with own_cluster.frozen("kubelet"):
            with anyio.fail_after(60):
                with pytest.raises((ProviderUnavailableError, OutcomeUnknownError)):
                    await box.run("true")
                with pytest.raises(ProviderUnavailableError):
                    await impatient.create(SandboxSpec())
                # Once its node is known to be lost, a pod is removed without its answer.
                with suppress(ProviderUnavailableError):
                    await impatient.delete(box.id)
    assert [type(error) for error in errors] == [OutcomeUnknownError]
    assert time.monotonic() - began < 200
    await provider.delete(patient.id)


@pytest.mark.nightly
async def test_a_pod_starts_while_the_api_server_is_restarted(
    own_cluster: Cluster, provider: KubernetesProvider
) -> None:
    made: list[str] = []

    async def start() -> None:
        while True:
            try:
                made.append(await provider.create(SandboxSpec()))
            except ProviderUnavailableError:
                await anyio.sleep(0.5)
            else:
                return

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(start)
        await anyio.sleep(0.3)
        await anyio.to_thread.run_sync(own_cluster.restart, "api")
    await anyio.to_thread.run_sync(own_cluster.wait_until_ready)
    found = {info.id async for info in provider.list({})}
    assert set(made) <= found
    for sandbox_id in made:
        assert await Box(provider, sandbox_id).run("echo", "up") == (0, "up\n", "")
        await provider.delete(sandbox_id)


async def test_each_fault_in_turn_loses_no_command_and_leaves_nothing(
    own_cluster: Cluster, room: str
) -> None:
    """Half a minute is enough for one turn; `make nightly` goes on for half an hour."""
    found = await soak(own_cluster, room, seconds=30, seed=1)
    assert (found.wrong, found.left) == ([], []), found.table()
    assert found.faults.keys() == set(FAULTS)
    assert found.commands > 50
