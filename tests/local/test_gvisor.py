"""gVisor without a daemon: what it can do and refuses, and what a dead owner leaves."""

import json
import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from sandboxkit import SandboxSpec, Session, errors
from sandboxkit.providers.local import LocalProvider, _cgroup
from tests.components import needs_local_gvisor
from tests.local.conftest import client, ended, make, said, until_gone

pytestmark = pytest.mark.anyio
needs_gvisor = needs_local_gvisor()


def gvisors(owner: int) -> set[str]:
    """The pids of gVisor's processes in sandboxes of an owner, whose pid begins the names of their groups."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            groups, command = (path / "cgroup").read_text(), (path / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if b"\0--rootless" in command and f"/{owner}-" in groups:
            found.add(path.name)
    return found


@needs_gvisor
async def test_what_gvisor_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    session = Session("local", isolation="gvisor", profile="strict")
    refused: dict[str, object] = {"user": "root", "pids": 64, "mounts": {"/data": "volume:v"}}
    refused |= {"network": "internet", "reuse": "reset", "snapshot": "snapshot-0123456789abcdef"}
    for option, value in refused.items():
        with pytest.raises(errors.ConfigurationError, match=f"cannot honour {option}="):
            session.sandbox(**{option: value})  # type: ignore[arg-type]  # one option at a time
    with pytest.raises(errors.ConfigurationError, match=r"isolation='gvisor'.*own memory"):
        session.sandbox().snapshot()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.ConfigurationError, match="there is no runsc; install"):
        await session.sandbox().exec(["true"])
    await session.close()
    assert not state.exists() or os.listdir(state) == []


@needs_gvisor
async def test_programs_have_their_own_kernel_and_bounded_files(provider: LocalProvider) -> None:
    box = await make(provider, isolation="gvisor", disk_mb=20)
    assert (await box.sh("uname -r; id -un")).stdout.split() == ["4.4.0", "sandbox"]
    # A thread, a program of a folder that only root can enter on this machine, and a write to the root.
    done = await box.python(
        "import threading; thread = threading.Thread(target=print, args=(1,)); thread.start(); thread.join()"
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert (await box.sh("echo x > /x")).status != 0
    full = await box.sh("head -c 15000000 /dev/zero > x")
    assert (full.status, "No space" in full.stderr) == (1, True)
    with pytest.raises(errors.CommandStartError, match="no program"):
        await box.run("no-such-program")
    # Another provider's connection goes through `runsc exec`.
    other = LocalProvider()
    try:
        assert (await type(box)(other.box(box.id)).sh("echo there")).stdout == "there\n"
    finally:
        await other.aclose()


@needs_gvisor
async def test_a_dead_owner_leaves_no_process(provider: LocalProvider, state: Path) -> None:
    create = 'print("begins", flush=True)\nawait provider.create(SandboxSpec(isolation="gvisor"))\n'
    for delay in (0.03, 0.1, 0.2, None):
        other = client(create + 'print("runs", flush=True)\nawait anyio.sleep(600)')
        await said(other)
        if delay is None:
            await said(other)
            assert gvisors(other.pid)
        await anyio.sleep(delay or 0)
        await ended(other, signal.SIGKILL)
        end = time.monotonic() + 60
        while gvisors(other.pid) and time.monotonic() < end:  # no event tells
            await anyio.sleep(0.05)
        assert gvisors(other.pid) == set()
    folders = [state / each for each in os.listdir(state)]
    await make(provider)  # its sweep
    await until_gone(folders)


# Bubblewrap, and its PID 1, which is gVisor, killed from outside; gVisor whose run time fails, with a status.
@pytest.mark.parametrize("how", [(0, signal.SIGKILL), (-1, signal.SIGKILL), (-1, signal.SIGQUIT)])
@needs_gvisor
async def test_only_gvisors_own_end_is_of_the_programs_and_says_so(
    provider: LocalProvider, how: tuple[int, signal.Signals]
) -> None:
    box = await make(provider, isolation="gvisor")
    meta = json.loads((provider.state.folder(box.id) / "meta.json").read_text())
    os.kill(int([*meta["processes"]][how[0]]), how[1])
    with pytest.raises(errors.SandboxTerminatedError) as caught:
        await box.sh("sleep 60")
    of_programs, text = how[1] is signal.SIGQUIT, str(caught.value)
    assert (caught.value.by_command, caught.value.out_of_memory) == (of_programs, False)
    assert ("ended by itself" in text) is ("; run fewer" in text) is of_programs


@needs_gvisor
async def test_the_doctor_starts_a_sandbox_with_gvisor(provider: LocalProvider) -> None:
    detail = (await provider.diagnose()).detail
    assert "gVisor is /" in detail
    assert ", in which a sandbox starts and ends in " in detail


def test_gvisor_needs_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cgroup, "available", lambda: frozenset({"cpu"}))
    with pytest.raises(errors.ConfigurationError, match=r"isolation='gvisor'.*control group"):
        LocalProvider().check(SandboxSpec(isolation="gvisor"))
