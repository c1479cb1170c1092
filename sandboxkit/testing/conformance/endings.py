"""Tests that a command's ending and resource usage are exact, or None."""

from sandboxkit import CommandTimeoutError, Ending, Sandbox, Session
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, limited
from sandboxkit.testing.conformance._pytest import pytest

_BUSY = """
import time
while time.process_time() < 0.3:
    pass
"""
_MEBIBYTE = 1 << 20
_HOLD_60_MB = "data = b'x' * (60 << 20)"


class EndingsConformance(Conformance):
    """`ProcessResult.ending` and `.usage` are None if the backend cannot know them."""

    def test_a_program_may_exit_with_137(self, shared: Sandbox) -> None:
        # A status above 128 alone does not prove a signal.
        result = shared.exec(["python3", "-c", "import os; os._exit(137)"]).result(DEADLINE)
        assert (result.returncode, result.ending in (Ending.EXITED, None)) == (137, True)

    def test_a_signal_from_within_is_a_signal(self, shared: Sandbox) -> None:
        for number in (1, 6, 9, 11, 15):
            command = ["sh", "-c", f"kill -{number} $$; sleep 60"]
            result = shared.exec(command).result(DEADLINE)
            assert result.returncode == 128 + number
            assert result.ending in (Ending.SIGNAL, None)

    def test_a_signal_to_a_child_leaves_the_command_its_own_end(self, shared: Sandbox) -> None:
        command = ["sh", "-c", "sh -c 'kill -9 $$'; exit 3"]
        result = shared.exec(command).result(DEADLINE)
        assert result.returncode == 3
        assert result.ending in (Ending.EXITED, None)

    def test_a_command_killed_by_its_caller_is_killed(self, shared: Sandbox) -> None:
        process = shared.exec(["sh", "-c", "echo ready; sleep 1000"])
        assert next(iter(process.stdout.lines())) == "ready"
        process.kill()
        result = process.result(DEADLINE)
        assert (result.returncode, result.ending) == (137, Ending.KILLED)

    def test_a_command_past_its_timeout_timed_out(self, shared: Sandbox) -> None:
        with pytest.raises(CommandTimeoutError) as caught:
            shared.exec(["sleep", "1000"], timeout=0.5).result(DEADLINE)
        assert caught.value.result.ending is Ending.TIMED_OUT

    def test_out_of_memory_is_distinguished_from_a_signal(self, session: Session) -> None:
        sandbox = limited(session, memory_mb=128)
        hog = ["python3", "-c", "data = b'x' * (1 << 30)"]
        result = sandbox.exec(hog).result(DEADLINE)
        assert result.returncode == 137
        assert result.ending in (Ending.OUT_OF_MEMORY, None)
        # A later kill in the same sandbox is not reported as out of memory.
        result = sandbox.exec(["sh", "-c", "kill -9 $$"]).result(DEADLINE)
        assert result.ending in (Ending.SIGNAL, None)

    def test_processor_seconds_are_true(self, shared: Sandbox) -> None:
        result = shared.exec(["python3", "-c", _BUSY]).result(DEADLINE)
        used = result.usage.processor_seconds
        assert used is None or 0.2 < used < 1.5, used
        idle = shared.exec(["sleep", "0.2"]).result(DEADLINE).usage.processor_seconds
        assert idle is None or idle < 0.2, idle

    def test_peak_memory_is_true(self, shared: Sandbox) -> None:
        result = shared.exec(["python3", "-c", _HOLD_60_MB]).result(DEADLINE)
        peak = result.usage.peak_memory_bytes
        assert peak is None or 60 * _MEBIBYTE <= peak < 200 * _MEBIBYTE, peak
        # The peak includes neither the parent's memory nor an earlier command's.
        small = shared.exec(["true"]).result(DEADLINE).usage.peak_memory_bytes
        assert small is None or small < 60 * _MEBIBYTE, small

    def test_what_nothing_limited_was_not_held_back(self, shared: Sandbox) -> None:
        usage = shared.exec(["true"]).result(DEADLINE).usage
        assert usage.throttled_seconds is None or 0 <= usage.throttled_seconds < 5
        assert usage.oom_kills in (0, None)
