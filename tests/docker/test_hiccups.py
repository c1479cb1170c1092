"""Connections to the daemon: cut for a while, closed, too many; no sandbox ends, no output is lost, none stays open."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import anyio
import pytest

from sandboxkit import Operation, Process, Sandbox, Session
from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.providers.docker import _provider as docker_provider
from tests.chaos.distant import no_way
from tests.components import needs_root
from tests.docker.conftest import PROGRAMS, SOCKET, containers
from tests.faults import FaultProxy, Reset

SHORT = pytest.param("short", marks=needs_root("only root may go past the daemon"))
COUNT = 3
TICKS = "i=0; until [ -e stop ]; do echo $((i += 1)); sleep 0.05; done; cat; echo over"
"""Counts until it is told to stop, and then echoes its input."""


@contextmanager
def connected(tag: str, listen: str = "unix") -> Iterator[tuple[FaultProxy, Session]]:
    """A session that reaches the daemon through a proxy."""
    with FaultProxy(f"unix://{SOCKET}", listen="tcp" if listen == "tcp" else "unix") as proxy:
        provider = DockerProvider(base_url=proxy.url, timeout=10)
        try:
            with Session(provider, tags={"test": tag}) as session:
                yield proxy, session
        finally:
            Operation(provider.aclose()).result(60)


def cut(proxy: FaultProxy, seconds: float) -> None:
    """Break every connection, and each new one, for `seconds`: how long the hiccup lasts is the test."""
    proxy.plan = lambda request: Reset()
    proxy.reset()
    time.sleep(seconds)
    proxy.heal()


def begun(sandbox: Sandbox) -> tuple[Process, Iterator[str]]:
    process = sandbox.exec(["sh", "-c", TICKS], stdin=True)
    lines = iter(process.stdout.lines())
    assert next(lines) == "1"
    return process, lines


@pytest.mark.parametrize("way", ["unix", "tcp", SHORT])
@pytest.mark.parametrize("seconds", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_cut_ends_no_sandbox_and_loses_no_output(
    daemon: None, tag: str, way: str, seconds: int
) -> None:
    connect = _direct.connect if way == "short" else no_way
    with mock.patch.object(_direct, "connect", connect), connected(tag, way) as (proxy, session):
        sandboxes = [session.sandbox() for _ in range(COUNT)]
        running = [begun(sandbox) for sandbox in sandboxes]
        ids = set(containers(tag))
        cut(proxy, seconds)
        for sandbox, (process, lines) in zip(sandboxes, running, strict=True):
            # However few lines a busy machine printed meanwhile.
            output = ["1", *(next(lines) for _ in range(int(seconds / 0.05 / 4)))]
            sandbox.write_file("/workspace/stop", b"").result(60)
            process.stdin.write("input\n").result(60)
            process.stdin.close()
            output += lines
            assert process.result(60).returncode == 0
            assert output[-2:] == ["input", "over"]
            assert output[:-2] == [str(n) for n in range(1, len(output) - 1)]
        assert set(containers(tag)) == ids


@pytest.mark.parametrize("hiccup", [False, True])
@pytest.mark.parametrize("way", ["through the daemon", SHORT])
def test_the_owners_death_ends_its_sandboxes(
    daemon: None, tag: str, way: str, hiccup: bool
) -> None:
    grace = 600.0 if way == "short" else 8.0 if hiccup else 2.0
    with FaultProxy(f"unix://{SOCKET}", listen="unix") as proxy:
        command = [sys.executable, "-c", PROGRAMS["owner"], proxy.url, tag, str(grace), way]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            if hiccup:
                cut(proxy, 1.0)
                deadline = time.monotonic() + 60
                while proxy.open < 1 and way != "short" and time.monotonic() < deadline:
                    time.sleep(0.05)  # until it is connected again
            assert len(containers(tag)) == 1
            owner.kill()
        died = time.monotonic()
        while containers(tag):
            time.sleep(0.05)
        took = time.monotonic() - died
        # The grace of a sandbox for which none is set is 30 s.
        assert took < (20.0 if way == "short" else grace + 20.0)


def test_the_documents_say_how_long_the_grace_is() -> None:
    root = Path(__file__).parents[2]
    for page in ("ARCHITECTURE.md", "docs/concepts/sessions.md"):
        assert f"{docker_provider._GRACE:g} seconds" in (root / page).read_text()
    assert (
        f"within {docker_provider._GRACE:g} s;" in (root / "docs/concepts/providers.md").read_text()
    )


MISSING = "sandboxkit-0123456789abcdef"


def connections(port: int) -> int:
    """How many of this process's sockets lead to the port."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as end:
                    found += end.family == socket.AF_INET and end.getpeername()[1] == port
    return found


@pytest.mark.anyio
async def test_a_closed_provider_keeps_no_connection_though_an_error_is_kept_or_a_call_follows(
    bridge: FaultProxy,
) -> None:
    port = int(bridge.url.rpartition(":")[2])
    before = connections(port)
    provider = DockerProvider(base_url=bridge.url)

    async def ask() -> SandboxNotFoundError:
        with pytest.raises(SandboxNotFoundError) as kept:
            await provider.get(MISSING)
        return kept.value

    kept = await ask()
    assert connections(port) > before
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
        await provider.aclose()
    await provider.aclose()
    assert connections(port) == before
    assert kept.__cause__ is not None
    await ask()
    assert connections(port) == before


@pytest.mark.usefixtures("daemon")
def test_the_limit_of_open_files_is_named() -> None:
    argv = [sys.executable, "-c", PROGRAMS["few_descriptors"]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    output = done.stdout.splitlines()
    assert output, done.stderr
    assert [line for line in output if "Docker daemon at" in line and "start it" in line] == []
    assert any("30 open files" in line and "ulimit -n" in line for line in output), output
