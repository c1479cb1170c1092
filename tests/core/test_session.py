"""Sessions and sandboxes: caps, closing, reaching others' sandboxes, and what is kept of those that are gone."""

import asyncio
import copy
import gc
import pickle
import weakref

import pytest

from sandboxkit import (
    CommandFailedError,
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxError,
    SandboxTerminatedError,
    Session,
    wait,
)
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from tests.pool.providers import Counting


class FailingDelete(FakeProvider):
    """Fails the first deletion of each sandbox."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()

    async def delete(self, sandbox_id: str) -> None:
        if sandbox_id not in self.failed:
            self.failed.add(sandbox_id)
            raise SandboxError("no")
        await super().delete(sandbox_id)


def ids(provider: Provider) -> list[str]:
    async def collect() -> list[str]:
        return [info.id async for info in provider.list({})]

    return Operation(collect()).result(60)


def test_a_failed_start_is_raised_and_the_next_use_tries_again() -> None:
    with Session(Counting(SandboxError("first")), max_concurrency=1) as session:
        sandbox = session.sandbox()
        with pytest.raises(SandboxError, match="first"):
            sandbox.exec(["true"]).result(60)
        assert sandbox.exec(["true"]).result(60).returncode == 0


def test_max_concurrency_is_a_hard_cap_for_all_that_count() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=2) as session:
        first, second, third = (session.sandbox() for _ in range(3))
        first.start().result(60)
        second.start().result(60)
        waiting = third.start()
        assert wait([waiting], timeout=0.2) == ([], [waiting])
        serving = session.sandbox(counted=False).start().result(60)
        assert sorted(ids(provider)) == sorted(str(box.id) for box in (first, second, serving))
        serving.stop().result(60)
        first.stop().result(60)
        waiting.result(60)
        assert sorted(ids(provider)) == sorted([str(second.id), str(third.id)])


def test_a_timeout_kills_and_carries_the_output_so_far() -> None:
    with Session(FakeProvider()) as session:
        for seconds in (0.5, 5.0, 50.0):  # on a busy machine it may not print in time
            command = ["sh", "-c", "echo begun; sleep 600"]
            process = session.sandbox().exec(command, timeout=seconds)
            with pytest.raises(CommandTimeoutError, match=f"timeout of {seconds:g} s") as caught:
                process.result(120)
            if caught.value.result.stdout:
                break
        assert caught.value.result.stdout == "begun\n"


def test_check_raises_for_a_failing_command_with_what_it_said() -> None:
    with Session(FakeProvider()) as session:
        process = session.sandbox().exec(["sh", "-c", "echo why >&2; exit 3"], check=True)
        with pytest.raises(CommandFailedError, match="status 3: why") as caught:
            process.result(60)
        assert caught.value.result.returncode == 3


def test_a_stopped_sandbox_and_a_closed_session_refuse_work_and_may_end_again() -> None:
    session = Session(FakeProvider())
    sandbox = session.sandbox()
    sandbox.exec(["true"]).result(60)
    for _ in range(2):
        sandbox.stop().result(60)
    with pytest.raises(SandboxTerminatedError, match=r"was stopped; make a new one with session"):
        sandbox.exec(["true"])
    for _ in range(2):
        session.close().result(60)
    for call in (session.sandbox, lambda: session.run(["true"])):
        with pytest.raises(ConfigurationError, match="is closed; make a new Session"):
            call()


def test_close_attempts_all_and_raises_one_group_and_can_be_repeated() -> None:
    provider = FailingDelete()
    session = Session(provider)
    for _ in range(3):
        session.sandbox().start().result(60)
    with pytest.raises(ExceptionGroup) as caught:
        session.close().result(60)
    assert len(caught.value.exceptions) == 3
    assert len(ids(provider)) == 3
    session.close().result(60)
    assert ids(provider) == []


def test_a_detached_sandbox_outlives_sessions_until_one_adopts_it() -> None:
    provider = FakeProvider()
    with Session(provider) as session:
        sandbox = session.sandbox(detach=True).start().result(60)
    assert ids(provider) == [sandbox.id]
    with Session(provider) as other:
        assert other.from_id(str(sandbox.id)).result(60).exec(["true"]).result(60).returncode == 0
    assert ids(provider) == [sandbox.id]
    with Session(provider) as adopter:
        adopter.adopt(sandbox).result(60)
    assert ids(provider) == []


def test_a_session_works_with_async_with() -> None:
    provider = FakeProvider()

    async def main() -> list[str]:
        async with Session(provider) as session, session.sandbox() as sandbox:
            results = await asyncio.gather(*[sandbox.exec(["echo", str(n)]) for n in range(4)])
            return [result.stdout for result in results]

    assert asyncio.run(main()) == ["0\n", "1\n", "2\n", "3\n"]
    assert ids(provider) == []


def test_sandbox_list_goes_through_the_ambient_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "nosuch")
    with pytest.raises(ConfigurationError, match="nosuch"):
        Sandbox.list()


def test_a_session_forgets_sandboxes_that_were_stopped() -> None:
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result()
        sandbox.stop().result()
        gone = weakref.ref(sandbox)
        del sandbox
        # The loop's thread lets go of what has ended.
        until(lambda: gc.collect() >= 0 and gone() is None, "it is collected", 60)


def test_a_session_that_is_copied_says_what_to_do_instead() -> None:
    with Session(FakeProvider()) as session:
        for copied in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError, match="Make a Session in each process"):
                copied(session)
