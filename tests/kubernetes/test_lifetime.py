"""How sandboxes end and what is left of them; and that they go on while the cluster's programs are killed or frozen."""

import os
import subprocess
import sys
import time
from contextlib import aclosing

import anyio
import anyio.to_thread
import pytest

from sandboxkit import errors
from sandboxkit import provider as contract
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider, _ends
from sandboxkit.providers.kubernetes._provider import PodBox, PodSweeper
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import Command, SandboxSpec, SandboxState
from tests.docker.boxes import Box, Pods
from tests.kubernetes.cluster import Cluster, Program
from tests.kubernetes.here import PROGRAMS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


_LEASE = 8.0
_LATE = 40.0
"""Seconds that a loaded machine may take longer than it should."""


def killed(how: str) -> str:
    """The id of a sandbox whose owner, another process, was killed."""
    environment = {**os.environ, "SANDBOXKIT_KUBERNETES_LEASE": f"{_LEASE:g}"}
    argv = [sys.executable, "-c", PROGRAMS["lifetime"]["owner"], how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            return process.stdout.readline().strip()
        finally:
            process.kill()


async def until_stopped(box: contract.Box, within: float) -> None:
    with anyio.fail_after(within):
        while (await box.info()).state is not SandboxState.STOPPED:
            await anyio.sleep(0.2)


async def test_the_lease_ends_the_sandbox_of_a_killed_owner_alone(boxes: Pods) -> None:
    """Neither a detached one nor that of an owner that is idle."""
    provider, kept = boxes.provider(), await boxes.start(boxes.provider(lease=_LEASE))
    detached, ended = (Box(provider.box(killed(how))) for how in ("detach", "keep"))
    began = time.monotonic()
    assert (await ended.inner.info()).state is not SandboxState.STOPPED
    await until_stopped(ended.inner, _LEASE + _LATE)
    with pytest.raises(errors.SandboxNotFoundError):
        await ended.run("true")
    await anyio.sleep(max(0.0, began + _LEASE + 4 - time.monotonic()))
    for box in (detached, kept):
        assert await box.run("echo", "here") == (0, "here\n", "")
    for box in (detached, ended):
        await box.inner.delete()


async def test_a_deletion_by_somebody_else_is_the_reason(boxes: Pods) -> None:
    box, other, runs = await boxes.start(), boxes.provider(), anyio.Event()

    async def remove() -> None:
        await runs.wait()
        await other.box(box.id).delete()

    async def output(stream: StreamName, chunk: bytes) -> None:
        runs.set()

    command = Command(("sh", "-c", "echo runs; exec sleep 1000"))
    async with anyio.create_task_group() as group:
        group.start_soon(remove)
        with pytest.raises(errors.SandboxTerminatedError, match="deleted"):
            await box.inner.exec(command, output)
    with pytest.raises(errors.SandboxNotFoundError):
        await box.inner.info()
    for other_id in (box.id, "sandboxkit-0123456789abcdef", "no/such:name"):
        await box.provider.box(other_id).delete()


async def test_a_renewal_is_noted_up_to_what_kubernetes_itself_would_end(boxes: Pods) -> None:
    first = f"{time.time() + 60:.0f}"
    provider = boxes.provider(max_lifetime=700)
    box = await boxes.start(provider, lifetime=60, tags={"sandboxkit.expires": first})

    async def left() -> float:
        info = await box.inner.info()
        assert info.expires_at is not None
        assert info.tags["sandboxkit.expires"] == first
        return info.expires_at.timestamp() - time.time()

    assert await left() < 61
    with pytest.raises(errors.ConfigurationError, match="max_lifetime"):
        await box.inner.renew(3600)
    assert await left() < 61
    await box.inner.renew(300)
    assert 200 < await left() < 301


async def test_finished_sandboxes_are_swept(boxes: Pods) -> None:
    provider = boxes.provider()
    alive = await boxes.start(provider)
    ended = await boxes.start(provider, lifetime=2)
    await until_stopped(ended.inner, _LATE)
    for kept, swept, left in (
        (3600, 0, {alive.id, ended.id}),
        (0, 1, {alive.id}),
        (0, 0, {alive.id}),
    ):
        assert await PodSweeper(provider.api, kept=kept).sweep() == swept
        assert {info.id async for info in provider.list({})} == left


async def test_a_frozen_kubelet_hangs_no_call_and_its_node_is_lost_until_it_returns(
    own_cluster: Cluster, provider: KubernetesProvider
) -> None:
    kept, lost = [await provider.create(SandboxSpec()) for _ in range(2)]
    caught: list[errors.SandboxError] = []

    runs = anyio.Event()

    async def output(stream: StreamName, data: bytes) -> None:
        runs.set()

    async def call(provider: KubernetesProvider) -> None:
        try:
            await provider.box(kept.id).exec(Command(("sh", "-c", "echo runs; sleep 600")), output)
        except errors.SandboxError as error:
            caught.append(error)

    async def seen(box: PodBox) -> PodStatus:
        return PodStatus(await box.pod())

    async with (
        aclosing(KubernetesProvider(timeout=3, start_timeout=4)) as impatient,
        anyio.create_task_group() as group,
    ):
        assert (await Box(impatient.box(kept.id)).run("true"))[0] == 0
        group.start_soon(call, impatient)
        await runs.wait()
        for each in (kept, lost):  # a node tells of a start up to a second later
            while not _ends.is_running(await seen(each)):
                await anyio.sleep(0.1)
        with own_cluster.frozen("kubelet"), anyio.fail_after(180):
            with pytest.raises((errors.ProviderUnavailableError, errors.OutcomeUnknownError)):
                await Box(impatient.box(kept.id)).run("true")
            with pytest.raises(errors.ProviderUnavailableError):
                await impatient.create(SandboxSpec())
            for each in (kept, lost):
                while not _ends.is_lost(await seen(each)):
                    await anyio.sleep(0.5)
            assert not _ends.has_ended(await seen(kept))
            assert "its node does not report" in str(
                _ends.end_error(await seen(kept), sandbox_id=kept.id)
            )
            await impatient.box(
                lost.id
            ).delete()  # a pod of a lost node is removed without its answer
        with anyio.fail_after(60):
            while _ends.is_lost(await seen(kept)):
                await anyio.sleep(0.5)
    assert [type(error) for error in caught] == [errors.OutcomeUnknownError]
    await kept.delete()


_WORK = "for n in $(seq 20); do echo $n; echo x >>ran-$0; sleep 0.1; done; exit 7"
_EXACT = 7, "".join(f"{n}\n" for n in range(1, 21)), ""


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_no_fault_of_a_program_loses_a_command_or_runs_it_twice(
    own_cluster: Cluster, provider: KubernetesProvider, how: str
) -> None:
    box = Box(await provider.create(SandboxSpec()))
    found: dict[str, tuple[int, str, str]] = {}

    def outage(program: Program) -> None:
        with own_cluster.without(program) if how == "kill" else own_cluster.frozen(program):
            time.sleep(3)

    async def run(name: str, script: str = _WORK) -> None:
        while name not in found:
            try:
                found[name] = await box.run("sh", "-c", script, name)
            except errors.OutcomeUnknownError:
                found[name] = -1, "", ""
            except errors.ProviderUnavailableError:
                await anyio.sleep(0.5)

    for program in ("api", "kubelet", "containerd"):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(run, f"{program}-{number}")
            await anyio.sleep(0.5)  # wherever the commands are when it happens
            await anyio.to_thread.run_sync(outage, program)
    await run("count", "for f in ran-*; do echo ${f#ran-} $(wc -l <$f); done")
    for name, lines in map(str.split, found.pop("count")[1].splitlines()):
        assert (found[name], int(lines)) == (_EXACT, 20) or (
            found[name][0] == -1 and int(lines) <= 20
        ), (name, lines, found[name])
    assert sum(each == _EXACT for each in found.values()) > 3
    await box.inner.delete()
