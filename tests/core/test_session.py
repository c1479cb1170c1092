"""Sessions and sandboxes: caps, closing, states, reaching others' sandboxes, and what is kept of those that are gone."""

import copy
import gc
import pickle
import re
import weakref
from pathlib import Path

import pytest

from sandboxkit import Operation, Sandbox, Session, errors, wait
from sandboxkit._life import _exit
from sandboxkit._lifecycle import STOP_REQUESTED, TRANSITIONS, State
from sandboxkit.provider import Provider
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from tests.pool.providers import Counting, Failing
from tests.traces import traces, use_up


def ids(provider: Provider) -> list[str]:
    async def collect() -> list[str]:
        return [info.id async for info in provider.list({})]

    return Operation(collect()).result(60)


def test_a_failed_start_is_raised_and_the_next_use_tries_again() -> None:
    with Session(Counting(errors.SandboxError("first")), max_concurrency=1) as session:
        sandbox = session.sandbox()
        with pytest.raises(errors.SandboxError, match="first"):
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


def test_check_raises_for_a_failing_command_with_what_it_said() -> None:
    with Session(FakeProvider()) as session:
        process = session.sandbox().exec(["sh", "-c", "echo why >&2; exit 3"], check=True)
        with pytest.raises(errors.CommandFailedError, match="status 3: why") as caught:
            process.result(60)
        assert caught.value.result.returncode == 3


def test_a_stopped_sandbox_and_a_closed_session_refuse_work_and_may_end_again() -> None:
    session = Session(FakeProvider())
    sandbox, never = session.sandbox(), session.sandbox()
    sandbox.exec(["true"]).result(60)
    for _ in range(2):
        sandbox.stop().result(60)
    with pytest.raises(
        errors.SandboxTerminatedError, match=r"was stopped; make a new one with session"
    ):
        sandbox.exec(["true"])
    for _ in range(2):
        session.close().result(60)
    for call in (session.sandbox, lambda: session.run(["true"]), lambda: never.start().result(60)):
        with pytest.raises(errors.ConfigurationError, match="is closed; make a new Session"):
            call()


def test_close_attempts_all_and_raises_one_group_and_can_be_repeated() -> None:
    provider = Failing(failures=3)
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


def test_sandbox_list_goes_through_the_ambient_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "nosuch")
    with pytest.raises(errors.ConfigurationError, match="nosuch"):
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


PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"


def test_architecture_has_the_table_of_states() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?)\|$", PAGE.read_text(), re.MULTILINE)
    assert {name: set(re.findall(r"`([A-Z_]+)`", names)) for name, names in rows} == {
        state.name: {each.name for each in following} for state, following in TRANSITIONS.items()
    }


def test_a_sandbox_that_is_to_stop_is_never_started_again() -> None:
    assert all(TRANSITIONS[state] <= STOP_REQUESTED for state in STOP_REQUESTED)


def _reached(reached: set[State]) -> set[State]:
    while (more := reached.union(*(TRANSITIONS[each] for each in reached))) != reached:
        reached = more
    return reached


def test_every_state_can_be_reached_and_ends() -> None:
    assert _reached({State.NEW}) == set(State)
    assert all(State.STOPPED in _reached({state}) for state in State)


@pytest.mark.anyio
@pytest.mark.timeout(900)  # on a busy machine: these are many sandboxes
async def test_a_fake_provider_keeps_no_state_of_ended_sandboxes() -> None:
    provider = FakeProvider()
    ids = await use_up(provider, None, 200)
    assert len(ids) == 200
    assert traces(provider, ids) == []
    await Operation(provider.aclose())


@pytest.mark.parametrize("detach", [False, True])
def test_a_sandbox_with_a_session_of_its_own_ends_with_it(detach: bool) -> None:
    provider = FakeProvider()
    with Sandbox.create(provider=provider, detach=detach, env={"A": "1"}) as sandbox:
        assert sandbox.exec(["sh", "-c", "echo $A"]).result(60).stdout == "1\n"
    assert ids(provider) == ([str(sandbox.id)] if detach else [])
    sandbox.stop().result(60)
    assert ids(provider) == []
    with pytest.raises(errors.ConfigurationError, match="is closed"):
        sandbox._own.sandbox()


def test_a_refused_option_closes_the_session_of_its_own() -> None:
    before = set(_exit._open)
    with pytest.raises(errors.ConfigurationError, match="relative"):
        Sandbox.create(provider=FakeProvider(), workdir="here")
    until(lambda: set(_exit._open) <= before, "its session is closed")


def test_a_failed_stop_of_such_a_sandbox_is_its_own_error_and_may_be_repeated() -> None:
    provider = Failing(1)
    sandbox = Sandbox.create(provider=provider).start().result(60)
    with pytest.raises(errors.ProviderUnavailableError, match="was reset"):
        sandbox.stop().result(60)
    sandbox.stop().result(60)
    assert ids(provider) == []
