"""Tests of a command's output and input."""

import os
import time

from sandboxkit import Sandbox
from sandboxkit.testing.conformance._base import DEADLINE, Conformance
from sandboxkit.testing.conformance._pytest import pytest

_BIG = 100 << 20
_SOON = ["sh", "-c", f"sleep 1; exec head -c {_BIG} /dev/zero"]
"""A command that waits for a second, in which a reader can attach, and then writes `_BIG` bytes."""
_ALL_BYTES = bytes(range(256)) * 300
_GROWTH = 60 << 20


class StreamsConformance(Conformance):
    """A command's stdout, stderr and stdin."""

    def test_stdout_and_stderr_are_apart(self, shared: Sandbox) -> None:
        result = shared.exec(["sh", "-c", "echo out; echo err >&2"]).result(DEADLINE)
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    def test_no_output_is_empty(self, shared: Sandbox) -> None:
        result = shared.exec(["true"]).result(DEADLINE)
        assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (b"", b"", False)

    def test_output_arrives_while_the_command_runs(self, shared: Sandbox) -> None:
        process = shared.exec(["sh", "-c", "echo first; read answer; echo $answer"], stdin=True)
        lines = iter(process.stdout.lines())
        assert next(lines) == "first"
        assert process.poll() is None
        process.stdin.write("second\n").result(DEADLINE)
        assert next(lines) == "second"
        assert process.result(DEADLINE).returncode == 0

    def test_the_output_of_a_short_command_is_complete(self, shared: Sandbox) -> None:
        command = ["sh", "-c", "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2"]
        for process in [shared.exec(command) for _ in range(10)]:
            result = process.result(DEADLINE)
            assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (300_000, 200_000)

    def test_order_is_kept_within_a_stream(self, shared: Sandbox) -> None:
        result = shared.exec(["seq", "100000"]).result(DEADLINE)
        assert result.stdout == "".join(f"{number}\n" for number in range(1, 100_001))

    def test_binary_output_is_exact(self, shared: Sandbox) -> None:
        script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)"
        result = shared.exec(["python3", "-c", script]).result(DEADLINE)
        assert result.stdout_bytes == _ALL_BYTES

    def test_output_that_is_not_utf8_is_replaced_in_text_only(self, shared: Sandbox) -> None:
        result = shared.exec(["printf", r"a\377b\303"]).result(DEADLINE)
        assert result.stdout == "a\ufffdb\ufffd"
        assert result.stdout_bytes == b"a\xffb\xc3"

    def test_binary_stdin_is_exact(self, shared: Sandbox) -> None:
        result = shared.exec(["cat"], stdin=_ALL_BYTES).result(DEADLINE)
        assert result.stdout_bytes == _ALL_BYTES

    def test_big_stdin_is_exact(self, shared: Sandbox) -> None:
        data = os.urandom(1 << 20) * 9
        result = shared.exec(["cat"], stdin=data).result(DEADLINE)
        assert result.stdout_bytes == data

    def test_empty_stdin_ends_at_once(self, shared: Sandbox) -> None:
        assert shared.exec(["cat"], stdin=b"").result(DEADLINE).stdout == ""

    def test_a_command_opens_its_streams_by_name(self, shared: Sandbox) -> None:
        script = "cat /dev/stdin >/dev/stdout; echo err >/dev/stderr"
        result = shared.exec(["sh", "-c", script], stdin=b"in").result(DEADLINE)
        assert (result.stdout, result.stderr) == ("in", "err\n")

    def test_without_stdin_there_is_the_null_device(self, shared: Sandbox) -> None:
        assert shared.exec(["cat"]).result(DEADLINE).returncode == 0

    def test_closing_stdin_ends_the_input(self, shared: Sandbox) -> None:
        process = shared.exec(["wc", "-c"], stdin=True)
        process.stdin.write(b"12345").result(DEADLINE)
        process.stdin.write(b"678").result(DEADLINE)
        process.stdin.close()
        assert process.result(DEADLINE).stdout.strip() == "8"

    def test_a_command_may_ignore_its_stdin(self, shared: Sandbox) -> None:
        result = shared.exec(["sh", "-c", "exit 5"], stdin=b"x" * (4 << 20)).result(DEADLINE)
        assert result.returncode == 5

    def test_a_background_child_that_holds_stdout_does_not_hold_up(self, shared: Sandbox) -> None:
        started = time.monotonic()
        result = shared.exec(["sh", "-c", "sleep 20 & echo done"]).result(DEADLINE)
        assert (result.returncode, result.stdout) == (0, "done\n")
        assert time.monotonic() - started < 10

    def test_output_past_the_limit_drops_the_middle(self, shared: Sandbox) -> None:
        command = ["sh", "-c", "echo begin; head -c 3000000 /dev/zero; echo end"]
        result = shared.exec(command, output_limit=10_000).result(DEADLINE)
        assert result.truncated
        assert len(result.stdout_bytes) == 10_000
        assert result.stdout_bytes.startswith(b"begin\n")
        assert result.stdout_bytes.endswith(b"end\n")

    def test_output_within_the_limit_is_not_truncated(self, shared: Sandbox) -> None:
        command = ["head", "-c", "10000", "/dev/zero"]
        result = shared.exec(command, output_limit=10_000).result(DEADLINE)
        assert (len(result.stdout_bytes), result.truncated) == (10_000, False)

    def test_100_mb_stream_at_bounded_memory(self, shared: Sandbox) -> None:
        before, most, size = _resident(), 0, 0
        process = shared.exec(_SOON, output_limit=1 << 20)
        for chunk in process.stdout.bytes():
            size += len(chunk)
            most = max(most, _resident())
        assert size == _BIG
        assert most - before < _GROWTH

    def test_100_mb_of_unread_output_use_bounded_memory(self, shared: Sandbox) -> None:
        before = most = _resident()
        process = shared.exec(["head", "-c", str(_BIG), "/dev/zero"], output_limit=1 << 20)
        while not process.done():
            most = max(most, _resident())
            time.sleep(0.01)
        assert process.result(DEADLINE).truncated
        assert most - before < _GROWTH

    def test_a_slow_reader_blocks_the_command(self, shared: Sandbox) -> None:
        process = shared.exec(_SOON, output_limit=1 << 20)
        chunks = iter(process.stdout.bytes())
        size = len(next(chunks))
        with pytest.raises(TimeoutError):
            process.result(0.5)
        size += sum(map(len, chunks))
        assert size == _BIG
        assert process.result(DEADLINE).returncode == 0


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
