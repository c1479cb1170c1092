"""A command's end as its Process tells it: who ended it, and what nobody can say."""

import asyncio
import concurrent.futures
import threading

import anyio
import pytest

from sandboxkit import (
    CommandFailedError,
    CommandStartError,
    CommandTimeoutError,
    CommandUsage,
    ConfigurationError,
    Ending,
    OutcomeUnknownError,
    Session,
)
from sandboxkit.provider import Output
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Command, Exit
from tests.pool.providers import interrupt

SLEEPS = ["sh", "-c", "echo started; exec sleep 1000"]


class Lost(FakeProvider):
    """Loses the way to a command, once it has printed something, when it is to be killed."""

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        await output("stdout", b"so far")
        await output("stderr", b"and this")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OutcomeUnknownError("it may run on", provider=self.name) from None
        raise AssertionError


class Ends(FakeProvider):
    """Every command ends in one way."""

    def __init__(self, end: Exit) -> None:
        super().__init__()
        self.end = end

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        return self.end


class Slow(FakeProvider):
    """Takes a while to kill a command."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.killed = threading.Semaphore(0), False

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        self.begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.3)
            self.killed = True
        raise AssertionError


def test_ctrl_c_in_result_is_raised_once_the_command_is_dead() -> None:
    provider = Slow()
    with Session(provider) as session:
        process = session.run(SLEEPS)
        with pytest.raises(TimeoutError):
            process.result(0.1)
        assert not provider.killed
        thread = interrupt(provider.begun)
        with pytest.raises(KeyboardInterrupt):
            process.result()
        assert provider.killed
        assert process.cancelled()
        thread.join()


def test_a_process_that_its_caller_killed_says_so() -> None:
    with Session(FakeProvider()) as session:
        process = session.run(SLEEPS)
        assert next(iter(process.stdout.lines())) == "started"
        assert process.poll() is None
        with pytest.raises(ConfigurationError, match=r"still running .* result\(\).* poll\(\)"):
            _ = process.returncode
        process.kill()
        result = process.result(60)
        assert (result.ending, result.returncode, result.usage) == (
            Ending.KILLED,
            137,
            CommandUsage(),
        )
        assert result.stdout == "started\n"
        assert process.returncode == process.poll() == 137


@pytest.mark.parametrize("way", ["kill", "timeout"])
def test_an_unconfirmed_kill_has_an_unknown_outcome(way: str) -> None:
    with Session(Lost()) as session:
        process = session.run(["anything"], timeout=0.2 if way == "timeout" else None)
        if way == "kill":
            next(iter(process.stdout))
            process.kill()
        with pytest.raises(OutcomeUnknownError, match="it may run on") as unknown:
            process.result(60)
    assert not isinstance(unknown.value, CommandTimeoutError)
    assert not unknown.value.retryable
    assert unknown.value.stdout_bytes == b"so far"
    assert unknown.value.stderr_bytes == b"and this"
    for ask in (lambda: process.returncode, process.poll):
        with pytest.raises(OutcomeUnknownError, match="it may run on"):
            ask()


def test_a_process_that_was_not_started_has_no_status() -> None:
    with Session(FakeProvider()) as session:
        process = session.run(["/no/such/program"], check=True)
        with pytest.raises(CommandStartError):
            process.result(60)
    for ask in (lambda: process.returncode, process.poll):
        with pytest.raises(CommandStartError):
            ask()


def test_a_loop_over_poll_ends_with_a_cancelled_command() -> None:
    with Session(FakeProvider()) as session:
        process = session.run(SLEEPS)
        next(iter(process.stdout))
        process.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            process.poll()


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (Exit(3, Ending.EXITED), "'program' exited with status 3"),
        (Exit(137, Ending.EXITED), "'program' exited with status 137"),
        (Exit(137), "'program' exited with status 137"),
        (Exit(139, Ending.SIGNAL), "'program' was killed by signal 11 (status 139)"),
        (
            Exit(137, Ending.OUT_OF_MEMORY),
            "'program' ran out of the sandbox's memory and was killed (status 137)",
        ),
    ],
)
def test_check_names_the_failure(end: Exit, message: str) -> None:
    with Session(Ends(end)) as session, pytest.raises(CommandFailedError) as failed:
        session.run(["program"], check=True).result(60)
    assert str(failed.value) == message
    assert failed.value.result.ending is end.ending


def test_check_says_that_a_killed_command_was_killed() -> None:
    with Session(FakeProvider()) as session:
        process = session.run(SLEEPS, check=True)
        next(iter(process.stdout))
        process.kill()
        with pytest.raises(CommandFailedError, match=r"was killed by kill\(\) \(status 137\)"):
            process.result(60)
