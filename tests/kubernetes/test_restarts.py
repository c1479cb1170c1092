"""The cluster's own programs are restarted, killed and frozen while sandboxes are at work."""

import time
from contextlib import aclosing
from typing import cast

import anyio
import anyio.to_thread
import pytest

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError, SandboxError
from sandboxkit.provider import StreamName
from sandboxkit.providers.kubernetes import KubernetesProvider, _ends
from sandboxkit.providers.kubernetes._watch import PodStatus
from sandboxkit.types import Command, SandboxSpec
from tests.docker.boxes import Box
from tests.kubernetes.cluster import Cluster, Program

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
            except OutcomeUnknownError:
                found[name] = -1, "", ""
            except ProviderUnavailableError:
                await anyio.sleep(0.5)

    for program in ("api", "kubelet", "containerd"):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(run, f"{program}-{number}")
            await anyio.sleep(0.5)  # wherever the commands are when it happens
            await anyio.to_thread.run_sync(outage, cast(Program, program))
    await run("count", "for f in ran-*; do echo ${f#ran-} $(wc -l <$f); done")
    for name, lines in map(str.split, found.pop("count")[1].splitlines()):
        assert (found[name], int(lines)) == (_EXACT, 20) or (
            found[name][0] == -1 and int(lines) <= 20
        ), (name, lines, found[name])
    assert sum(each == _EXACT for each in found.values()) > 3
    await provider.delete(box.id)
