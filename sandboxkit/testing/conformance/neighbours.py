"""Tests of input, terminals and files while other commands and leftover processes run."""

import os
import time

from sandboxkit import Ending, Process, PtySize, Sandbox
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, token
from sandboxkit.testing.conformance.kill import alive

_DAEMON = 'setsid sh -c "$1" "$2" >/dev/null 2>&1 </dev/null & echo started'
_LIVES = "while :; do sleep 1; done"
_TERMINAL = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"


def leave_daemon(sandbox: Sandbox) -> str:
    """Run a command that leaves a process behind; return the token in that process's command line."""
    mark = token()
    result = sandbox.exec(["sh", "-c", _DAEMON, "sh", _LIVES, mark], check=True).result(DEADLINE)
    assert result.stdout == "started\n"
    # While a process executes another program, its command line can be read as empty.
    give_up = time.monotonic() + DEADLINE
    while not alive(sandbox, mark):
        assert time.monotonic() < give_up
    return mark


def sleepers(sandbox: Sandbox, count: int) -> list[Process]:
    """Start commands that only sleep."""
    processes = [sandbox.exec(["sh", "-c", "echo ready; exec sleep 1000"]) for _ in range(count)]
    for process in processes:
        assert next(iter(process.stdout.lines())) == "ready"
    return processes


def end(processes: list[Process]) -> None:
    """Kill the commands and wait for their ends."""
    for process in processes:
        process.kill()
    for process in processes:
        assert process.result(DEADLINE).ending is Ending.KILLED


class NeighboursConformance(Conformance):
    """A request reaches its own command, whatever else runs in the sandbox."""

    def test_input_reaches_its_command_beside_others(self, shared: Sandbox) -> None:
        data = os.urandom(300_000)
        neighbours = sleepers(shared, 3)
        try:
            for _ in range(5):
                result = shared.exec(["cat"], stdin=data, timeout=DEADLINE).result()
                assert result.stdout_bytes == data
        finally:
            end(neighbours)

    def test_input_reaches_its_command_beside_leftovers(self, shared: Sandbox) -> None:
        leave_daemon(shared)
        for index in range(5):
            cat = shared.exec(["cat"], stdin=True, timeout=DEADLINE)
            cat.stdin.write(f"{index}".encode()).result(DEADLINE)
            cat.stdin.close()
            assert cat.result(DEADLINE).stdout == str(index)

    def test_the_end_of_one_input_is_not_that_of_another(self, shared: Sandbox) -> None:
        first, second = (shared.exec(["cat"], stdin=True, timeout=DEADLINE) for _ in range(2))
        second.stdin.write(b"before ").result(DEADLINE)
        first.stdin.write(b"first").result(DEADLINE)
        first.stdin.close()
        assert first.result(DEADLINE).stdout == "first"
        assert second.poll() is None
        second.stdin.write(b"after").result(DEADLINE)
        second.stdin.close()
        assert second.result(DEADLINE).stdout == "before after"

    def test_many_inputs_at_once_stay_apart(self, shared: Sandbox) -> None:
        inputs = [os.urandom(50_000) for _ in range(8)]
        processes = [shared.exec(["cat"], stdin=data, timeout=DEADLINE) for data in inputs]
        assert [process.result(DEADLINE).stdout_bytes for process in processes] == inputs

    def test_many_files_at_once_beside_leftovers(self, shared: Sandbox, folder: str) -> None:
        for _ in range(3):
            leave_daemon(shared)
        files = {f"{folder}/{index}": os.urandom(20_000) for index in range(8)}
        writes = [shared.write_file(path, data) for path, data in files.items()]
        for write in writes:
            write.result(DEADLINE)
        reads = {path: shared.read_file(path) for path in files}
        assert {path: read.result(DEADLINE) for path, read in reads.items()} == files

    def test_a_kill_spares_what_an_exited_command_left(self, shared: Sandbox) -> None:
        left = leave_daemon(shared)
        end(sleepers(shared, 2))
        assert alive(shared, left)


class TerminalNeighboursConformance(Conformance):
    """Each terminal has its own input and size."""

    def test_concurrent_terminals_lose_nothing(self, shared: Sandbox) -> None:
        neighbours = sleepers(shared, 3)
        try:
            for index in range(4):
                process = shared.exec(
                    ["sh", "-c", "read -r line; echo got $line; stty size"],
                    pty=PtySize(20 + index, 60),
                    timeout=DEADLINE,
                )
                process.stdin.write(f"{index}\n".encode()).result(DEADLINE)
                output = process.result(DEADLINE).stdout
                assert f"got {index}" in output
                assert f"{20 + index} 60" in output
        finally:
            end(neighbours)

    def test_a_resize_reaches_its_own_terminal_only(self, shared: Sandbox) -> None:
        first, second = (
            shared.exec(["sh", "-c", _TERMINAL], pty=PtySize(24, 80)) for _ in range(2)
        )
        lines = iter(second.stdout.lines())
        firsts = iter(first.stdout.lines())
        assert next(firsts).strip() == "ready"
        assert next(lines).strip() == "ready"
        second.stdin.resize(PtySize(11, 22))
        assert next(lines).strip() == "11 22"
        time.sleep(0.3)  # time for the other terminal to report a resize, if it got one
        first.stdin.resize(PtySize(33, 44))
        assert next(firsts).strip() == "33 44"  # with no earlier report
        end([first, second])

    def test_a_kill_ends_one_of_two_equal_commands(self, shared: Sandbox) -> None:
        first, second = (
            shared.exec(["cat"], pty=PtySize(24, 80), timeout=DEADLINE) for _ in range(2)
        )
        seconds = iter(second.stdout.lines())
        second.stdin.write(b"one\n").result(DEADLINE)
        assert next(seconds).strip() == "one"
        end([first])
        assert second.poll() is None
        second.stdin.write(b"two\n").result(DEADLINE)
        assert "two" in {next(seconds).strip() for _ in range(3)}
        end([second])
