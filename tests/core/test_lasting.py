"""What lasts in a sandbox, a terminal or a kernel: opened on first use, and closed whatever happens."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from sandboxkit import Operation, Sandbox, Session, errors
from sandboxkit.kernel import Kernel
from sandboxkit.provider import Output
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.terminal import Terminal
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance._base import until
from sandboxkit.types import Command, Ending, Exit

Opens: TypeAlias = Callable[..., Kernel | Terminal]

SECONDS = 60.0
SCRIPTS = tomllib.loads(Path(__file__).with_name("lasting.toml").read_text())
HELD = "/tmp/held"
"""What opens waits while it is there, and says so in it."""
FILES = {f"/tmp/site/{name}": text for name, text in SCRIPTS.pop("site").items()}
ENV = {"LASTING": "1", "BASH_ENV": "/tmp/site/begin", "PYTHONPATH": "/tmp/site"}
CLOSED = (errors.TerminalError, errors.KernelError)


def a_terminal(box: Sandbox, cwd: str | None = None) -> Terminal:
    return box.terminal(cwd=cwd, env=ENV)


def a_kernel(box: Sandbox, cwd: str | None = None) -> Kernel:
    return box.python(cwd=cwd, env=ENV, ipykernel=False)


@pytest.fixture(params=[a_terminal, a_kernel])
def opens(request: pytest.FixtureRequest) -> Opens:
    return request.param  # type: ignore[no-any-return]  # one of these two


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Session("local", files=FILES) as session:
        yield session.sandbox().start().result(SECONDS)


@pytest.fixture
def held(box: Sandbox) -> Sandbox:
    """One in which nothing opens before it is released."""
    box.exec(["mkdir", HELD]).result(SECONDS)
    return box


def left(box: Sandbox) -> list[str]:
    return box.exec(["sh", "-c", SCRIPTS["left"]]).result(SECONDS).stdout.splitlines()


def until_held(box: Sandbox) -> None:
    begun = ["rm", f"{HELD}/begun"]
    until(lambda: box.exec(begun).result(SECONDS).returncode == 0, "it begins", SECONDS)


def test_closing_during_a_start_leaves_nothing(held: Sandbox, opens: Opens) -> None:
    lasting = opens(held)
    starting = lasting.start()
    until_held(held)
    queued = lasting.start()
    first, second = lasting.close(), lasting.close()
    second.result(SECONDS)
    first.result(SECONDS)
    assert left(held) == []
    for refused in (starting, queued, lasting.start()):
        with pytest.raises(CLOSED, match="was closed: open another"):
            refused.result(SECONDS)


def test_waiting_for_room_does_not_count_as_start_time(opens: Opens) -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        first = session.sandbox().start().result(SECONDS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sandboxkit.terminal._managed.START_SECONDS", 0.05)
            starting = opens(session.sandbox()).start()
            with pytest.raises(TimeoutError):
                starting.result(0.5)
        first.stop().result(SECONDS)
        starting.result(SECONDS).close().result(SECONDS)


def test_closing_while_the_sandbox_waits_for_room_leaves_the_queue(opens: Opens) -> None:
    with Session(FakeProvider(), max_concurrency=1) as session:
        first = session.sandbox().start().result(SECONDS)
        sandbox = session.sandbox()
        lasting = opens(sandbox)
        starting = lasting.start()
        until(lambda: lasting._starting is not None, "it waits", SECONDS)
        lasting.close().result(SECONDS)
        with pytest.raises(CLOSED, match="was closed"):
            starting.result(SECONDS)
        first.stop().result(SECONDS)
        session.sandbox().start().result(SECONDS)
        assert sandbox.id is None


def test_a_start_that_is_too_slow_leaves_nothing(
    held: Sandbox, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.terminal._managed.START_SECONDS", 0.5)
    with pytest.raises(errors.CommandStartError, match=r"start.* within 0\.5 s") as caught:
        opens(held).start().result(SECONDS)
    assert caught.value.retryable
    assert left(held) == []


def test_a_cancelled_start_leaves_nothing(held: Sandbox, opens: Opens) -> None:
    lasting = opens(held)
    only = lasting.start()
    until_held(held)
    only.cancel()
    until(lambda: not left(held), "nothing is left", SECONDS)
    cancelled, kept = lasting.start(), lasting.start()
    until_held(held)
    cancelled.cancel()
    held.exec(["rm", "-rf", HELD]).result(SECONDS)
    kept.result(SECONDS)
    assert len([each for each in left(held) if each.startswith("/tmp/.sandboxkit-")]) <= 1
    lasting.close().result(SECONDS)
    assert left(held) == []


def test_a_failed_start_closes_it(box: Sandbox, opens: Opens) -> None:
    lasting = opens(box, "/nowhere")
    with pytest.raises(errors.CommandStartError, match="/nowhere"), lasting:
        raise AssertionError
    assert left(box) == []
    with pytest.raises(CLOSED, match="was closed"):
        lasting.start().result(SECONDS)


def test_a_close_without_waiters_still_completes(box: Sandbox, opens: Opens) -> None:
    lasting = opens(box).start().result(SECONDS)

    async def give_up() -> None:
        lasting.close().cancel()

    Operation(give_up()).result(SECONDS)
    until(lambda: not left(box), "nothing is left", SECONDS)


def test_a_sandbox_that_ends_while_it_starts_says_so(held: Sandbox, opens: Opens) -> None:
    lasting = opens(held)
    starting = lasting.start()
    until_held(held)
    held.stop().result(SECONDS)
    for each in (starting, lasting.start()):
        with pytest.raises(errors.SandboxTerminatedError):
            each.result(SECONDS)
    lasting.close().result(SECONDS)


def test_a_sandbox_that_ends_during_a_start_is_not_a_failure_to_start(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, execute, ended = LocalBox.delete, LocalBox.exec, list[str]()

    async def noted(box: LocalBox) -> None:
        ended.append(box.id)
        await delete(box)

    async def seen_to_end(box: LocalBox, command: Command, output: Output) -> Exit:
        before = not ended
        try:
            return await execute(box, command, output)
        except errors.SandboxTerminatedError:
            if not before:
                raise
            return Exit(137, Ending.SIGNAL)  # what runs in it is seen to end before it does

    monkeypatch.setattr(LocalBox, "delete", noted)
    monkeypatch.setattr(LocalBox, "exec", seen_to_end)
    with Session("local", files=FILES) as session:
        held = session.sandbox()
        held.exec(["mkdir", HELD]).result(SECONDS)
        starting = opens(held).start()
        until_held(held)
        session.from_id(str(held.id)).result(SECONDS).stop().result(SECONDS)
        with pytest.raises((errors.SandboxTerminatedError, errors.SandboxNotFoundError)):
            starting.result(SECONDS)
