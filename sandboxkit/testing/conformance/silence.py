"""Tests that a silent backend and broken connections count as infrastructure failures."""

import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from sandboxkit import (
    CommandError,
    CommandStartError,
    OutcomeUnknownError,
    Process,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, box_of, mine
from sandboxkit.testing.conformance._pytest import pytest

_COUNTS = 'echo ran >> "count$1"; echo ready; sleep 1; echo done'
_NEVER = 600.0
"""A timeout (s) far beyond the bound on silence."""
_SHORT_SILENCE = 1.0


def works_again(sandbox: Sandbox) -> None:
    """Wait until the sandbox runs commands again, after connections have recovered."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            assert sandbox.exec(["echo", "back"], timeout=10).result(DEADLINE).stdout == "back\n"
        except (ProviderUnavailableError, OutcomeUnknownError):
            if time.monotonic() > end:
                raise
        else:
            return
        time.sleep(0.1)


def counting(sandbox: Sandbox, number: int, timeout: float | None = None) -> Process:
    """Start a command that records each of its starts in a file."""
    return sandbox.exec(["sh", "-c", _COUNTS, "sh", str(number)], timeout=timeout)


def ran(sandbox: Sandbox, number: int) -> int | None:
    """Return how often the command was started; None if the sandbox has ended."""
    try:
        works_again(sandbox)
        return sandbox.read_file(f"/workspace/count{number}").result(DEADLINE).count(b"ran")
    except FileNotFoundError:
        return 0
    except SandboxError:
        return None


class SilenceConformance(Conformance):
    """The backend stops while every connection stays open, as when a machine is suspended."""

    def test_silence_is_not_a_timeout(self, session: Session) -> None:
        sandbox = session.sandbox(command=["sleep", "1000"], files={"/workspace/file": "there"})
        sandbox.start().result(DEADLINE)
        running = [
            sandbox.exec(["sh", "-c", "echo ready; exec sleep 1000"], timeout=timeout)
            for timeout in (None, _NEVER, 3)
        ]
        for process in running:
            assert next(iter(process.stdout.lines())) == "ready"
        waiting = sandbox.wait()
        self.freeze(box_of(sandbox))
        began = time.monotonic()
        try:
            # Any: the result types differ, but every call must fail.
            calls: dict[str, Future[Any]] = {
                "a running exec": running[0],
                "a running exec(timeout=600)": running[1],
                "a running exec(timeout=3)": running[2],
                "wait": waiting,
                "exec": sandbox.exec(["true"]),
                "exec(timeout=3)": sandbox.exec(["true"], timeout=3),
                "read_file": sandbox.read_file("/workspace/file"),
                "write_file": sandbox.write_file("/workspace/new", "x" * 300_000),
                "stat": sandbox.stat("/workspace/file"),
                "list_dir": sandbox.list_dir("/workspace"),
            }
            errors = {
                name: _error(call, began + self.silence_bound) for name, call in calls.items()
            }
        finally:
            self.thaw(box_of(sandbox))
        for name, error in errors.items():
            assert isinstance(error, SandboxError), f"{name}: {error!r}"
            assert not isinstance(error, CommandError | CommandStartError), f"{name}: {error!r}"
            if name.startswith("a running exec"):
                assert isinstance(error, OutcomeUnknownError), f"{name}: {error!r}"
        works_again(sandbox)

    def test_a_short_silence_changes_nothing(self, sandbox: Sandbox) -> None:
        script = "echo ready; read -r line; seq 20000; echo got $line"
        process = sandbox.exec(["sh", "-c", script], stdin=True)
        lines = iter(process.stdout.lines())
        assert next(lines) == "ready"
        self.freeze(box_of(sandbox))
        try:
            late = sandbox.exec(["echo", "late"])
            process.stdin.write("it\n")
            time.sleep(_SHORT_SILENCE)
        finally:
            self.thaw(box_of(sandbox))
        assert late.result(DEADLINE).stdout == "late\n"
        assert list(lines) == [*map(str, range(1, 20_001)), "got it"]
        assert process.result(DEADLINE).returncode == 0

    def test_a_silent_sandbox_can_be_stopped(self, session: Session, sandbox: Sandbox) -> None:
        process = sandbox.exec(["sh", "-c", "echo ready; exec sleep 1000"])
        assert next(iter(process.stdout.lines())) == "ready"
        self.freeze(box_of(sandbox))
        try:
            error = sandbox.stop().exception(2 * self.silence_bound)
        except BaseException:
            self.thaw(box_of(sandbox))
            raise
        if error is not None:  # the process that would end it is frozen too
            self.thaw(box_of(sandbox))
            assert isinstance(error, ProviderUnavailableError), repr(error)
            sandbox.stop().result(DEADLINE)
        assert mine(session) == []
        ended = process.exception(DEADLINE)
        assert isinstance(ended, SandboxTerminatedError | OutcomeUnknownError), repr(ended)


class LostConnectionConformance(Conformance):
    """Connections break while commands are in flight; each command starts at most once."""

    def test_a_lost_connection_has_no_status(self, sandbox: Sandbox) -> None:
        process = counting(sandbox, 0)
        lines = iter(process.stdout.lines())
        assert next(lines) == "ready"
        self.cut(box_of(sandbox))
        self._judge(process)
        assert ran(sandbox, 0) in (1, None)

    def test_a_lost_connection_is_not_a_timeout(self, sandbox: Sandbox) -> None:
        process = counting(sandbox, 0, timeout=60)
        assert next(iter(process.stdout.lines())) == "ready"
        self.cut(box_of(sandbox))
        self._judge(process)

    @pytest.mark.parametrize("delay", [0.0, 0.005, 0.05])
    def test_a_command_whose_start_is_cut_runs_at_most_once(
        self, sandbox: Sandbox, delay: float
    ) -> None:
        processes = [counting(sandbox, number) for number in range(4)]
        time.sleep(delay)  # varies how much has been sent before the cut
        self.cut(box_of(sandbox))
        for number, process in enumerate(processes):
            error = process.exception(DEADLINE)
            if isinstance(error, ProviderUnavailableError):  # it means: not started
                assert ran(sandbox, number) in (0, None)
            else:
                exact = self._judge(process) is None
                assert ran(sandbox, number) in ((1,) if exact else (0, 1, None))

    def test_input_is_exact_or_lost_with_its_command(self, sandbox: Sandbox) -> None:
        process = sandbox.exec(["sh", "-c", "echo ready; wc -c"], stdin=True)
        lines = iter(process.stdout.lines())
        assert next(lines) == "ready"
        process.stdin.write(b"x" * 100_000).result(DEADLINE)
        self.cut(box_of(sandbox))
        with suppress(BrokenPipeError):  # the command is lost
            process.stdin.write(b"y" * 100_000).result(DEADLINE)
            process.stdin.close()
        if self._judge(process, output=None) is None:
            output = process.result().stdout
            assert output == "ready\n200000\n", output

    def _judge(
        self, process: Process, output: str | None = "ready\ndone\n"
    ) -> BaseException | None:
        """Require an exact result, or an error that is not retryable and does not blame the command."""
        error = process.exception(DEADLINE)
        if error is None:
            assert process.result().returncode == 0
            assert output in (None, process.result().stdout)
        else:
            assert isinstance(error, OutcomeUnknownError | SandboxTerminatedError), repr(error)
            assert not error.retryable
        return error


def _error(call: "Future[Any]", until: float) -> BaseException | str | None:
    try:
        return call.exception(max(0.0, until - time.monotonic()))
    except TimeoutError:
        return "still waiting"
