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
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider, _ends
from sandboxkit.providers.kubernetes._sweep import PodSweeper
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


async def until_stopped(provider: KubernetesProvider, sandbox_id: str, within: float) -> None:
    with anyio.fail_after(within):
        while (await provider.get(sandbox_id)).state is not SandboxState.STOPPED:
            await anyio.sleep(0.2)


async def test_the_lease_ends_the_sandbox_of_a_killed_owner_alone(boxes: Pods) -> None:
    """Neither a detached one nor that of an owner that is idle."""
    provider, kept = boxes.provider(), await boxes.start(boxes.provider(lease=_LEASE))
    detached, ended = Box(provider, killed("detach")), Box(provider, killed("keep"))
    began = time.monotonic()
    assert (await provider.get(ended.id)).state is not SandboxState.STOPPED
    await until_stopped(provider, ended.id, _LEASE + _LATE)
    with pytest.raises(errors.SandboxNotFoundError):
        await ended.run("true")
    await anyio.sleep(max(0.0, began + _LEASE + 4 - time.monotonic()))
    for box in (detached, kept):
        assert await box.run("echo", "here") == (0, "here\n", "")
    for box in (detached, ended):
        await provider.delete(box.id)


async def test_a_deletion_by_somebody_else_is_the_reason(boxes: Pods) -> None:
    box, other, runs = await boxes.start(), boxes.provider(), anyio.Event()

    async def remove() -> None:
        await runs.wait()
        await other.delete(box.id)

    async def output(stream: StreamName, chunk: bytes) -> None:
        runs.set()

    command = Command(("sh", "-c", "echo runs; exec sleep 1000"))
    async with anyio.create_task_group() as group:
        group.start_soon(remove)
        with pytest.raises(errors.SandboxTerminatedError, match="deleted"):
            await box.provider.exec(box.id, command, output)
    with pytest.raises(errors.SandboxNotFoundError):
        await box.provider.get(box.id)
    for other_id in (box.id, "sandboxkit-0123456789abcdef", "no/such:name"):
        await box.provider.delete(other_id)


async def test_a_renewal_is_noted_up_to_what_kubernetes_itself_would_end(boxes: Pods) -> None:
    first = f"{time.time() + 60:.0f}"
    provider = boxes.provider(max_lifetime=700)
    box = await boxes.start(provider, lifetime=60, tags={"sandboxkit.expires": first})

    async def left() -> float:
        info = await provider.get(box.id)
        assert info.expires_at is not None
        assert info.tags["sandboxkit.expires"] == first
        return info.expires_at.timestamp() - time.time()

    assert await left() < 61
    with pytest.raises(errors.ConfigurationError, match="max_lifetime"):
        await provider.renew(box.id, 3600)
    assert await left() < 61
    await provider.renew(box.id, 300)
    assert 200 < await left() < 301


async def test_finished_sandboxes_are_swept(boxes: Pods) -> None:
    provider = boxes.provider()
    alive = await boxes.start(provider)
    ended = await boxes.start(provider, lifetime=2)
    await until_stopped(provider, ended.id, _LATE)
    for kept, swept, left in (
        (3600, 0, {alive.id, ended.id}),
        (0, 1, {alive.id}),
        (0, 0, {alive.id}),
    ):
        assert await PodSweeper(provider._api, kept=kept).sweep() == swept
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
            await provider.exec(kept, Command(("sh", "-c", "echo runs; sleep 600")), output)
        except errors.SandboxError as error:
            caught.append(error)

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
            with pytest.raises((errors.ProviderUnavailableError, errors.OutcomeUnknownError)):
                await Box(impatient, kept).run("true")
            with pytest.raises(errors.ProviderUnavailableError):
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
    assert [type(error) for error in caught] == [errors.OutcomeUnknownError]
    await provider.delete(kept)


_WORK = "for n in $(seq 20); do echo $n; echo x >>ran-$0; sleep 0.1; done; exit 7"
_EXACT = 7, "".join(f"{n}\n" for n in range(1, 21)), ""


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_no_fault_of_a_program_loses_a_command_or_runs_it_twice(
    own_cluster: Cluster, provider: KubernetesProvider, how: str
) -> None:
    box = Box(provider, await provider.create(SandboxSpec()))
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
    await provider.delete(box.id)
