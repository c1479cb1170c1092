"""A command that is sent along with its sandbox's start: at most once, and never for a caller who gave up."""

import asyncio
from collections.abc import Iterator

import pytest

from sandboxkit import OutcomeUnknownError, ProviderUnavailableError, Sandbox, Session
from sandboxkit.provider import FirstCommand
from sandboxkit.testing.conformance._base import until
from sandboxkit.testing.fake import FakeBox
from sandboxkit.types import Command, Exit, Output, SandboxSpec
from tests.pool.providers import Gated, on_the_loop


class Eager(Gated):
    """It sends a first command along, and holds each creation from then on until it is let go."""

    def __init__(self) -> None:
        super().__init__(at_end=True, kind=_EagerBox)
        self.sent: list[tuple[str, ...]] = []
        """The commands that were sent along."""
        self.executed: list[tuple[str, ...]] = []
        """The commands that `exec` was called with."""
        self.fails: Exception | None = None
        self.refuses = False
        """Whether a failed start proves that the command did not run."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        if first is not None and first.claim():
            self.sent.append(first.command.argv)
        box = await super().create(spec)
        if first is not None and self.fails is not None:
            await box.delete()
            if self.refuses:
                first.refuted()
            raise self.fails
        return box


class _EagerBox(FakeBox):
    async def exec(self, command: Command, output: Output) -> Exit:
        assert isinstance(self.provider, Eager)
        self.provider.executed.append(command.argv)
        return await super().exec(command, output)


def shares_the_start(sandbox: Sandbox, callers: int) -> None:
    """Wait until so many callers wait for the start of a sandbox."""
    life = sandbox._life
    until(lambda: life._start is not None and life._start.waiting == callers, "they wait", 60)


@pytest.fixture
def provider() -> Eager:
    return Eager()


@pytest.fixture
def session(provider: Eager) -> Iterator[Session]:
    with Session(provider) as session:
        yield session
    assert not provider.boxes


def test_the_command_that_starts_a_sandbox_is_sent_along(session: Session, provider: Eager) -> None:
    provider.open()
    sandbox = session.sandbox()
    for text in ("1", "2"):
        assert sandbox.exec(["echo", text]).result(60).stdout == f"{text}\n"
    assert (provider.sent, provider.executed) == ([("echo", "1")], [("echo", "1"), ("echo", "2")])


def test_nothing_is_sent_along_before_files_are_written(session: Session, provider: Eager) -> None:
    provider.open()
    sandbox = session.sandbox(files={"/workspace/a": b"1"})
    assert sandbox.exec(["cat", "/workspace/a"]).result(60).stdout == "1"
    assert provider.sent == []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_failed_start_says_whether_the_command_may_have_run(
    session: Session, provider: Eager, refuses: bool
) -> None:
    provider.fails = ProviderUnavailableError("the connection broke", provider="fake")
    provider.refuses = refuses
    first = session.sandbox().exec(["true"])
    provider.open()
    error = ProviderUnavailableError if refuses else OutcomeUnknownError
    with pytest.raises(error, match="connection broke"):
        first.result(60)
    assert provider.executed == []


def test_a_command_that_shares_a_failed_start_is_not_sent(
    session: Session, provider: Eager
) -> None:
    provider.fails = ProviderUnavailableError("the connection broke", provider="fake")
    sandbox = session.sandbox()
    first = sandbox.exec(["echo", "first"])
    assert provider.entered.acquire(timeout=60)
    second = sandbox.exec(["echo", "second"])
    shares_the_start(sandbox, callers=2)
    provider.open()
    with pytest.raises(OutcomeUnknownError):
        first.result(60)
    with pytest.raises(ProviderUnavailableError):
        second.result(60)
    assert provider.sent == [("echo", "first")]


def test_a_command_that_was_sent_for_a_caller_who_gave_up_ends_with_its_sandbox(
    session: Session, provider: Eager
) -> None:
    sandbox = session.sandbox()
    first = sandbox.exec(["echo", "first"])
    assert provider.entered.acquire(timeout=60)
    second = sandbox.exec(["echo", "second"])
    shares_the_start(sandbox, callers=2)
    first.cancel()
    # The other caller gets a sandbox in which nothing has run, and its own command is sent along.
    assert provider.entered.acquire(timeout=60)
    provider.open()
    assert second.result(60).stdout == "second\n"
    assert (provider.creates, provider.sent) == (2, [("echo", "first"), ("echo", "second")])
    assert provider.executed == [("echo", "second")]


@pytest.mark.parametrize("hops", range(30))
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_caller_may_give_up_at_any_moment_around_the_end_of_the_start(
    session: Session, provider: Eager, ahead: int, hops: int
) -> None:
    """Another caller comes `ahead` turns of the loop before the first one gives up."""
    sandbox = session.sandbox()
    first = sandbox.exec(["echo", "first"])
    assert provider.entered.acquire(timeout=60)
    others = [sandbox.exec(["echo", "other"])]
    on_the_loop(lambda: None)  # it shares the start now

    def turn(left: int) -> None:
        if left == ahead:
            others.append(sandbox.exec(["echo", "other"]))
        if left:
            asyncio.get_running_loop().call_soon(turn, left - 1)
        else:
            first.cancel()

    def begin() -> None:
        provider.gate.set()
        turn(ahead + hops)

    on_the_loop(begin)
    until(lambda: len(others) == 2, "another caller has come", 60)
    for other in others:
        assert other.result(60).stdout == "other\n"
    # Either `exec` has taken the command over, and killed it, or it ended with its sandbox.
    assert (("echo", "first") in provider.executed) == (provider.creates == 1)


def test_a_command_whose_caller_gave_up_before_the_start_is_not_sent(provider: Eager) -> None:
    provider.open()
    with Session(provider, max_concurrency=1) as session:
        other = session.sandbox().start().result(60)
        sandbox = session.sandbox()
        first = sandbox.exec(["echo", "first"])
        second = sandbox.exec(["echo", "second"])
        shares_the_start(sandbox, callers=2)
        first.cancel()
        other.stop().result(60)
        assert second.result(60).stdout == "second\n"
    assert provider.sent == []
