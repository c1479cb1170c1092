"""Silence: an agent that does not answer is told from one that is busy, delayed or starved."""

import asyncio
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError
from sandboxkit.providers._agent import client as connection
from sandboxkit.providers._agent import requests, stream
from sandboxkit.providers._agent.client import AgentClient, is_held_up
from tests.agent.conftest import PROGRAMS, Box, Run, at_start, until
from tests.agent.test_link import Silent, as_in_the_background_loop, detached, run

__all__ = ["as_in_the_background_loop", "detached"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the pulse's times, divided by 16."""
    for name in ("_TICK", "_PING_AFTER", "_KEEP_OPEN", "SILENT_AFTER"):
        monkeypatch.setattr(connection, name, getattr(connection, name) / 16)


@pytest.mark.usefixtures("hurry")
async def test_a_busy_sandbox_is_not_silent(box: Box) -> None:
    assert (await box.exec("sleep", "2")).status == 0


@pytest.mark.usefixtures("hurry")
async def test_a_silent_connection_is_replaced_if_another_can_be_opened(box: Box) -> None:
    streams: list[Silent] = []

    async def open_silent() -> Silent:
        stream = await box.inner._connect()
        streams.append(Silent(stream, stream))
        return streams[-1]

    client = await AgentClient.start(
        await open_silent(), requests.hello(None), grace=20, reopen=open_silent
    )
    streams[0].silent = True
    await until(lambda: len(streams) == 2)
    assert (await run(client, "echo", "here")).stdout == b"here\n"
    await client.aclose()


async def test_all_callers_that_wait_for_a_connection_fail_together(
    detached: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.providers._agent.box._CONNECT_PATIENCE", 1.0)
    os.kill(detached.agent_pid(), signal.SIGSTOP)
    with anyio.fail_after(15):  # one after the other they would take 20 s
        calls = [detached.inner.stat("/") for _ in range(20)]
        refused = await asyncio.gather(*calls, return_exceptions=True)
    os.kill(detached.agent_pid(), signal.SIGCONT)
    assert [type(error) for error in refused] == [ProviderUnavailableError] * 20


@pytest.mark.usefixtures("hurry")
async def test_a_starved_agent_is_given_time(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy must not be excused by processes of its own that delay the agent."""
    pid, begun = box.agent_pid(), Run()
    monkeypatch.setattr(box.inner.progress, "is_busy", lambda _: True)

    async def delay() -> None:
        os.kill(pid, signal.SIGSTOP)
        await anyio.sleep(2)  # four times as long as silence is borne
        os.kill(pid, signal.SIGCONT)

    async with at_start(begun, delay):
        assert (await box.sh("echo; sleep 1; exit 3", run=begun)).status == 3


async def test_a_process_without_cpu_is_distinguished_from_a_stopped_one(box: Box) -> None:
    pid = box.agent_pid()
    await until(lambda: not is_held_up(pid))  # it is idle
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: not is_held_up(pid))  # its last thread has stopped
    os.kill(pid, signal.SIGCONT)
    assert is_held_up(os.getpid())
    assert not is_held_up(2**22 + 1)  # no such process


async def test_a_process_blocked_in_the_kernel_is_not_an_idle_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with await anyio.open_process(
        [sys.executable, "-c", PROGRAMS["spawns"], str(pipe)]
    ) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        try:
            await until(lambda: b") D " in stat.read_bytes())
            assert is_held_up(process.pid)
        finally:
            with open(os.open(pipe, os.O_RDWR), "wb"):
                await process.wait()


@pytest.mark.parametrize("held_up", [True, False])
async def test_a_kill_waits_for_a_delayed_agent(
    box: Box, monkeypatch: pytest.MonkeyPatch, held_up: bool
) -> None:
    monkeypatch.setattr(stream, "_LOOK", 0.25)
    monkeypatch.setattr(connection, "_KILL_PATIENCE", 0.5)
    monkeypatch.setattr(box.inner.progress, "is_busy", lambda _: held_up)
    pid, begun, scope = box.agent_pid(), Run(), anyio.CancelScope()

    async def stand_still() -> None:
        os.kill(pid, signal.SIGSTOP)
        scope.cancel()
        await anyio.sleep(2)  # four times as long as a kill is waited for
        os.kill(pid, signal.SIGCONT)

    unknown = nullcontext() if held_up else pytest.raises(OutcomeUnknownError, match="killed")
    async with at_start(begun, stand_still):
        with unknown, scope:
            await box.sh("echo; sleep 1000", run=begun)


async def test_a_timeout_is_kept_while_the_agent_is_frozen(box: Box) -> None:
    pid, begun, scope = box.agent_pid(), Run(), anyio.CancelScope()

    async def stand_still() -> None:
        os.kill(pid, signal.SIGSTOP)
        scope.deadline = anyio.current_time() + 0.3

    async with at_start(begun, stand_still):
        since = time.monotonic()
        with pytest.raises(OutcomeUnknownError, match="killed within 2 s"), scope:
            await box.sh("echo; sleep 600", run=begun)
        assert time.monotonic() - since < 15  # an agent that answers has 30 s
    os.kill(pid, signal.SIGCONT)
    await box.settled()  # the command was killed as soon as that could be


@pytest.mark.usefixtures("hurry")
async def test_a_call_after_a_long_silence_gets_the_full_time_limit(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was asked anything meanwhile: that was no silence."""
    monkeypatch.setattr(connection, "_KEEP_OPEN", 60.0)
    streams: list[ByteStream] = []

    async def opened() -> ByteStream:
        streams.append(await box.inner._connect())
        return streams[-1]

    client = await AgentClient.start(await opened(), requests.hello(None), grace=10, reopen=opened)
    await anyio.sleep(3 * connection.SILENT_AFTER)
    command = f"sleep {connection._TICK * 2.5}; echo here"
    assert (await run(client, "sh", "-c", command)).stdout == b"here\n"
    assert len(streams) == 1
    await client.aclose()
