"""A command's end as its Process tells it: who ended it, and what nobody can say."""

import asyncio
import concurrent.futures
import threading
from typing import TypeAlias

import anyio
import pytest

from sandboxkit import Session, errors
from sandboxkit.provider import Output
from sandboxkit.testing import FakeProvider, fake
from sandboxkit.testing.fake import FakeBox
from sandboxkit.types import Command, CommandUsage, Ending, Exit
from tests.pool.providers import interrupt

Patch: TypeAlias = pytest.MonkeyPatch
SLEEPS = ["sh", "-c", "echo started; exec sleep 1000"]


def test_ctrl_c_in_result_is_raised_once_the_command_is_dead(monkeypatch: Patch) -> None:
    begun, killed = threading.Semaphore(0), list[bool]()

    async def killed_slowly(*_: object) -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.3)
            killed.append(True)

    monkeypatch.setattr(FakeBox, "exec", killed_slowly)
    with Session(FakeProvider()) as session:
        process = session.run(SLEEPS)
        with pytest.raises(TimeoutError):
            process.result(0.1)
        assert not killed
        thread = interrupt(begun)
        with pytest.raises(KeyboardInterrupt):
            process.result()
        assert killed
        assert process.cancelled()
        thread.join()


def test_a_process_that_its_caller_killed_says_so() -> None:
    with Session(FakeProvider()) as session:
        process = session.run(SLEEPS, check=True)
        assert next(iter(process.stdout.lines())) == "started"
        assert process.poll() is None
        with pytest.raises(
            errors.ConfigurationError, match=r"still running .* result\(\).* poll\(\)"
        ):
            _ = process.returncode
        process.kill()
        killed = r"was killed by kill\(\) \(status 137\)"
        with pytest.raises(errors.CommandFailedError, match=killed) as failed:
            process.result(60)
        result = failed.value.result
        assert (result.ending, result.usage) == (Ending.KILLED, CommandUsage())
        assert result.stdout == "started\n"
        assert process.returncode == process.poll() == result.returncode == 137


@pytest.mark.parametrize("way", ["kill", "timeout"])
def test_an_unconfirmed_kill_has_an_unknown_outcome(way: str, monkeypatch: Patch) -> None:
    async def loses_the_way(_: FakeBox, __: Command, output: Output) -> None:
        await output("stdout", b"so far")
        await output("stderr", b"and this")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise errors.OutcomeUnknownError("it may run on") from None

    monkeypatch.setattr(FakeBox, "exec", loses_the_way)
    with Session(FakeProvider()) as session:
        process = session.run(["anything"], timeout=0.2 if way == "timeout" else None)
        if way == "kill":
            next(iter(process.stdout))
            process.kill()
        with pytest.raises(errors.OutcomeUnknownError, match="it may run on") as unknown:
            process.result(60)
    assert not isinstance(unknown.value, errors.CommandTimeoutError)
    assert not unknown.value.retryable
    assert (unknown.value.stdout_bytes, unknown.value.stderr_bytes) == (b"so far", b"and this")
    for ask in (lambda: process.returncode, process.poll):
        with pytest.raises(errors.OutcomeUnknownError, match="it may run on"):
            ask()


def test_a_process_that_was_not_started_has_no_status() -> None:
    with Session(FakeProvider()) as session:
        process = session.run(["/no/such/program"], check=True)
        with pytest.raises(errors.CommandStartError):
            process.result(60)
        for ask in (lambda: process.returncode, process.poll):
            with pytest.raises(errors.CommandStartError):
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
def test_check_names_the_failure(end: Exit, message: str, monkeypatch: Patch) -> None:
    async def ends(*_: object) -> Exit:
        return end

    monkeypatch.setattr(FakeBox, "exec", ends)
    with Session(FakeProvider()) as session, pytest.raises(errors.CommandFailedError) as failed:
        session.run(["program"], check=True).result(60)
    assert str(failed.value) == message
    assert failed.value.result.ending is end.ending


def test_deletion_ends_a_command_without_an_environment_yet(monkeypatch: Patch) -> None:
    # Between `execve` and the set-up of its memory a process has an empty /proc/PID/environ.
    monkeypatch.setattr(fake, "MARKER", "ANOTHER")
    real = fake.members
    monkeypatch.setattr(fake, "members", lambda mark, leader: real("unread", leader))
    with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        running = sandbox.exec(SLEEPS)
        next(iter(running.stdout))
        sandbox.stop().result(60)
        with pytest.raises(errors.SandboxTerminatedError):
            running.result(60)
