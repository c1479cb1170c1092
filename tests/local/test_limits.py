"""Memory, processes, disk and processor time of a sandbox are bounded, and say so at a command's end."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, SandboxTerminatedError
from sandboxkit.providers.local import LocalProvider, _cgroup
from sandboxkit.types import Ending, SandboxSpec
from tests.components import lack, needs_control_group, needs_mounts, reason
from tests.local.conftest import PROGRAMS, Box, launched, make

pytestmark = pytest.mark.anyio

needs_memory = needs_control_group("memory")
needs_pids = needs_control_group("pids")
needs_cpu = needs_control_group("cpu")


@needs_memory
async def test_sandbox_full_of_files_beyond_its_memory_says_so(provider: LocalProvider) -> None:
    box = await make(provider, memory_mb=64, disk_mb=1024)
    with pytest.raises(SandboxTerminatedError, match="out of memory"):
        await box.sh("head -c 200M /dev/zero > /tmp/big; true")


async def test_filling_the_disk_leaves_memory_by_default(provider: LocalProvider) -> None:
    box = await make(provider, **({"memory_mb": 64} if "memory" in _cgroup.available() else {}))
    run = await box.sh("head -c 2G /dev/zero > /tmp/big")
    assert "No space left" in run.stderr
    assert (await box.run("echo", "alive")).stdout == "alive\n"


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_full_disk_is_an_error_of_the_program(provider: LocalProvider, profile: str) -> None:
    box = await make(provider, disk_mb=32, profile=profile)
    written = 0
    for folder in ("/workspace", "/tmp"):
        run = await box.python(f"FOLDER = {folder!r}\n" + PROGRAMS["fills_a_file"])
        written += int(run.stdout)
    assert 20 << 20 < written <= 32 << 20


async def test_nothing_else_in_the_root_is_without_bound(provider: LocalProvider) -> None:
    box = await make(provider, disk_mb=16, memory_mb=32)
    run = await box.python(PROGRAMS["nothing_else_in_the_root_is_without_bound"])
    assert int(run.stdout) <= (16 + 32) << 20


@needs_mounts("a container's control groups are a mount in a namespace")
def test_containers_processes_move_out_of_the_group_that_is_to_have_limits() -> None:
    """The test needs control groups of version 2 with a controller that no hierarchy of version 1 has."""
    if " cgroup2 " not in Path("/proc/mounts").read_text():
        lack(reason("control groups of version 2", "mount them anywhere"))
    done = subprocess.run(
        [
            "sh",
            "-c",
            PROGRAMS["as_in_a_container_with_privileged"],
            "sh",
            sys.executable,
            PROGRAMS["finds_its_groups"],
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "",
        "2 /sys/fs/cgroup/sandboxkit",
        "0 processes",
        "0::/init",
    ]


@needs_cpu
async def test_cpus_bound_processor_time(provider: LocalProvider, state: Path) -> None:
    box = await make(provider, cpus=0.25)
    run = await box.python(
        "import time; w, c = time.monotonic(), time.process_time()\n"
        "while time.monotonic() - w < 2: pass\n"
        "print((time.process_time() - c) / (time.monotonic() - w))"
    )
    assert float(run.stdout) < 0.4


ZEROS: list[dict[str, Any]] = [{each: 0} for each in ("memory_mb", "disk_mb", "pids", "cpus")]
USERS = ({"user": "postgres"}, {"user": "root", "profile": "strict"})


@pytest.mark.parametrize(
    "spec", [{"gpu": "any"}, *USERS, {"detach": True, "lifetime": None}, *ZEROS], ids=str
)
async def test_unsupported_limits_are_refused(spec: dict[str, Any]) -> None:  # options' types
    with pytest.raises(ConfigurationError):
        LocalProvider().check(SandboxSpec(**spec))


@pytest.mark.parametrize("spec", [{"memory_mb": 64}, {"pids": 9}, {"cpus": 1.0}])
async def test_limits_need_a_control_group(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    monkeypatch.setattr(_cgroup, "available", frozenset)
    with pytest.raises(ConfigurationError, match=f"{next(iter(spec))}=.*cannot be enforced"):
        LocalProvider().check(SandboxSpec(**spec))


@needs_cpu
async def test_every_sandbox_has_the_same_share_whatever_it_runs(provider: LocalProvider) -> None:
    cpus = len(os.sched_getaffinity(0))
    used: dict[int, float] = {}

    async def measure(processes: int) -> None:
        box = await make(provider)
        await box.python(PROGRAMS["spin_for_3_seconds"].format(processes))
        usage = await box.inner.usage()
        used[processes] = usage.processor_seconds or 0.0

    async with anyio.create_task_group() as group:
        for processes in (cpus, 20 * cpus):
            group.start_soon(measure, processes)
    # Without shares it would be 20 times as much; the two do not begin at once on a busy machine.
    assert used[20 * cpus] < 8 * used[cpus]


@needs_pids
async def test_groups_in_use_at_the_end_go_with_the_provider(provider: LocalProvider) -> None:
    box = await make(provider, lifetime=60.0)
    groups = [Path(group) for group in launched(provider, box.id).groups]
    with subprocess.Popen(["sleep", "600"]) as stranger:
        (groups[0] / "cgroup.procs").write_text(str(stranger.pid))
        await box.inner.renew(0.1)
        with anyio.fail_after(60):
            while box.inner.launched is not None:  # nothing tells
                await anyio.sleep(0.01)
        assert groups[0].exists()
        stranger.kill()
    await provider.aclose()
    assert not any(group.exists() for group in groups)


HOG = "b = bytearray()\nwhile True: b += b'x' * 10_000_000"


@needs_memory
async def test_a_command_is_told_of_its_own_hogs_only(provider: LocalProvider) -> None:
    box, other = await make(provider, memory_mb=64), LocalProvider()
    child = f"import subprocess, sys\nsys.exit(subprocess.call(['python3', '-c', {HOG!r}]) == -9)"
    done = (await box.python(child)).exit
    assert (done.status, done.ending, done.usage.oom_kills) == (1, Ending.EXITED, 1)
    done = (await box.python("import os; os.kill(os.getpid(), 9)")).exit
    assert (done.ending, done.usage.oom_kills) == (Ending.SIGNAL, 0)
    try:
        done = (await Box(other.box(box.id)).python(HOG)).exit  # a second client's command
    finally:
        await other.aclose()
    assert (done.ending, done.usage.oom_kills) == (Ending.OUT_OF_MEMORY, 1)


@needs_cpu
async def test_a_busy_program_past_its_share_was_throttled(provider: LocalProvider) -> None:
    # So little of a processor that a busy machine's own slowness is more than that.
    box = await make(provider, cpus=0.1)
    # Ten of the shares of a tenth of a second, however long it stands still meanwhile.
    code = "import time\nwhile time.process_time() < 0.13: pass"
    throttled = (await box.python(code)).exit.usage.throttled_seconds
    assert throttled is not None
    assert 0 < throttled < 60
    idle = (await box.python("import time; time.sleep(0.2)")).exit.usage.throttled_seconds
    assert idle is not None
    assert idle < throttled
