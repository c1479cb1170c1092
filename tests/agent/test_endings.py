"""What the agent says of a command that ended: by what, and what it used."""

import pytest

from sandboxkit.types import Ending, PtySize
from tests.agent.conftest import Box

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("signal", [15, 6])
async def test_a_program_that_kills_itself_was_ended_by_a_signal(box: Box, signal: int) -> None:
    exit = (await box.exec("python3", "-c", f"import os; os.kill(os.getpid(), {signal})")).exit
    assert (exit.status, exit.ending) == (128 + signal, Ending.SIGNAL)


async def test_a_sigkill_has_an_unknown_cause_without_memory_counts(box: Box) -> None:
    """The kernel's, for want of memory, looks the same."""
    exit = (await box.exec("python3", "-c", "import os; os.kill(os.getpid(), 9)")).exit
    assert (exit.status, exit.ending) == (137, None)


async def test_a_hangup_of_the_terminal_is_a_signal(box: Box) -> None:
    exit = (await box.sh("kill -HUP $$", pty=PtySize())).exit
    assert (exit.status, exit.ending) == (129, Ending.SIGNAL)


async def test_cpu_time_includes_the_children_that_the_command_reaped(box: Box) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    used = (await box.exec("python3", "-c", burn)).exit.usage.processor_seconds
    assert used is not None
    assert 0.3 <= used < 3
    used = (await box.sh(f"python3 -c '{burn}'; true")).exit.usage.processor_seconds
    assert used is not None
    assert 0.3 <= used < 3
    used = (await box.exec("sleep", "0.3")).exit.usage.processor_seconds
    assert used is not None
    assert used < 0.2


async def test_peak_memory_is_the_largest_process(box: Box) -> None:
    eat = "x = bytearray(100 << 20); del x"
    peak = (await box.exec("python3", "-c", eat)).exit.usage.peak_memory_bytes
    assert peak is not None
    assert 100 << 20 <= peak < 200 << 20


async def test_a_memory_peak_that_may_be_the_agents_is_not_reported(box: Box) -> None:
    """Linux counts for a program the memory that it was started from."""
    assert (await box.exec("true")).exit.usage.peak_memory_bytes is None
