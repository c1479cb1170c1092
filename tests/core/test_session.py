"""Sessions and sandboxes: laziness, sharing, caps, stopping, closing."""

import asyncio
import threading

import pytest

from sandboxkit import (
    CommandFailedError,
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
    wait,
)
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec


class Gated(FakeProvider):
    """Counts creates and holds each until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.creates = 0

    def open(self) -> None:
        """Let every create go on."""

        async def on_the_loop() -> None:
            self.gate.set()

        Operation(on_the_loop()).result(60)

    async def create(self, spec: SandboxSpec) -> str:
        self.creates += 1
        self.entered.release()
        await self.gate.wait()
        return await super().create(spec)


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

    return asyncio.run(collect())


def test_a_sandbox_starts_on_first_use_only() -> None:
    provider = FakeProvider()
    with Session(provider) as session:
        sandbox = session.sandbox()
        assert sandbox.id is None
        assert ids(provider) == []
        sandbox.exec(["true"]).result()
        assert ids(provider) == [sandbox.id]
    assert ids(provider) == []


def test_concurrent_first_uses_share_one_start_and_one_cancel_spares_the_others() -> None:
    provider = Gated()
    with Session(provider) as session:
        sandbox = session.sandbox()
        processes = [sandbox.exec(["true"]) for _ in range(8)]
        assert provider.entered.acquire(timeout=60)
        processes[0].cancel()
        provider.open()
        assert [process.result(60).returncode for process in processes[1:]] == [0] * 7
        assert provider.creates == 1


def test_stop_during_the_start_leaves_nothing() -> None:
    provider = Gated()
    with Session(provider) as session:
        sandbox = session.sandbox()
        process = sandbox.exec(["true"])
        assert provider.entered.acquire(timeout=60)
        sandbox.stop().result(60)
        with pytest.raises(SandboxTerminatedError, match="was stopped"):
            process.result(60)
    assert ids(provider) == []


def test_a_failed_start_is_raised_and_the_next_use_tries_again() -> None:
    class FailsOnce(FakeProvider):
        calls = 0

        async def create(self, spec: SandboxSpec) -> str:
            self.calls += 1
            if self.calls == 1:
                raise SandboxError("first")
            return await super().create(spec)

    with Session(FailsOnce(), max_concurrency=1) as session:
        sandbox = session.sandbox()
        with pytest.raises(SandboxError, match="first"):
            sandbox.exec(["true"]).result(60)
        assert sandbox.exec(["true"]).result(60).returncode == 0


def test_max_concurrency_is_a_hard_cap() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=2) as session:
        first, second, third = (session.sandbox() for _ in range(3))
        first.start().result(60)
        second.start().result(60)
        waiting = third.start()
        assert wait([waiting], timeout=0.2) == ([], [waiting])
        assert len(ids(provider)) == 2
        first.stop().result(60)
        waiting.result(60)
        assert sorted(ids(provider)) == sorted([second.id or "", third.id or ""])


def test_run_uses_a_fresh_sandbox_each_time() -> None:
    provider = FakeProvider()
    with Session(provider, max_concurrency=4) as session:
        processes = [session.run(["sh", "-c", f"echo {n}"]) for n in range(12)]
        assert [process.result(30).stdout for process in processes] == [f"{n}\n" for n in range(12)]
    assert ids(provider) == []


def test_run_with_bad_arguments_leaves_no_sandbox_behind() -> None:
    with Session(FakeProvider()) as session:
        with pytest.raises(ConfigurationError):
            session.run("true")
        assert not session._sandboxes


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
        assert isinstance(caught.value, TimeoutError)


def test_check_raises_for_a_failing_command() -> None:
    with Session(FakeProvider()) as session:
        process = session.sandbox().exec(["sh", "-c", "echo why >&2; exit 3"], check=True)
        with pytest.raises(CommandFailedError, match="status 3: why") as caught:
            process.result(60)
        assert caught.value.result.returncode == 3


def test_kill_ends_the_command_with_137() -> None:
    with Session(FakeProvider()) as session:
        process = session.sandbox().exec(["sh", "-c", "echo up; sleep 60"])
        assert next(iter(process.stdout)) == "up\n"
        process.kill()
        assert process.result(60).returncode == 137
        assert process.poll() == 137


def test_a_stopped_sandbox_refuses_commands() -> None:
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result(60)
        sandbox.stop().result(60)
        sandbox.stop().result(60)
        with pytest.raises(SandboxTerminatedError, match="was stopped"):
            sandbox.exec(["true"])


def test_a_closed_session_refuses_sandboxes() -> None:
    session = Session(FakeProvider())
    session.close().result(60)
    session.close().result(60)
    with pytest.raises(ConfigurationError, match="is closed"):
        session.sandbox()


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


def test_from_id_does_not_own_and_adopt_does() -> None:
    provider = FakeProvider()
    with Session(provider) as owner:
        sandbox = owner.sandbox().start().result(60)
        assert sandbox.id
        with Session(provider) as other:
            same = other.from_id(sandbox.id).result(60)
            assert same.exec(["true"]).result(60).returncode == 0
        assert ids(provider) == [sandbox.id]
        with Session(provider) as adopter:
            adopter.adopt(sandbox.id).result(60)
        assert ids(provider) == []
        with Session(provider) as third, pytest.raises(SandboxNotFoundError):
            third.from_id("nosuch").result(60)


def test_detached_sandboxes_outlive_their_session() -> None:
    provider = FakeProvider()
    with Session(provider) as session:
        sandbox = session.sandbox(detach=True).start().result(60)
    assert ids(provider) == [sandbox.id]
    with Session(provider) as session:
        session.adopt(sandbox).result(60)
    assert ids(provider) == []


def test_a_session_works_with_async_with() -> None:
    provider = FakeProvider()

    async def main() -> list[str]:
        async with Session(provider) as session, session.sandbox() as sandbox:
            results = await asyncio.gather(*[sandbox.exec(["echo", str(n)]) for n in range(4)])
            return [result.stdout for result in results]

    assert asyncio.run(main()) == ["0\n", "1\n", "2\n", "3\n"]
    assert ids(provider) == []


def test_an_unused_stdin_says_how_to_open_one() -> None:
    with Session(FakeProvider()) as session:
        process = session.sandbox().exec(["true"])
        with pytest.raises(ConfigurationError, match="stdin=True"):
            process.stdin.write(b"x")
        process.result(60)


def test_sandbox_list_goes_through_the_ambient_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "nosuch")
    with pytest.raises(ConfigurationError, match="nosuch"):
        Sandbox.list()
