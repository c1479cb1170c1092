"""A local sandbox whose agent is stopped: the infrastructure's silence, never the program's."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxkit import Sandbox, Session
from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError, SandboxError

WITHIN = 10.0


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Session(provider="local") as session:
        sandbox = session.sandbox()
        sandbox.start().result(60)
        yield sandbox


def send(sandbox: Sandbox, number: signal.Signals, state: Path) -> None:
    """A signal to the agent, which only the host can send."""
    assert sandbox.id is not None
    meta = json.loads((state / sandbox.id / "meta.json").read_text())
    *_, agent = meta["processes"]
    os.kill(int(agent), number)


def fails_in_time(result: Callable[[float], object], *kinds: type[SandboxError]) -> None:
    begun = time.monotonic()
    with pytest.raises(kinds):
        result(3 * WITHIN)
    assert time.monotonic() - begun < WITHIN


@pytest.mark.parametrize("timeout", [None, 3.0])
def test_an_agent_stopped_under_a_command_leaves_its_outcome_unknown(
    sandbox: Sandbox, state: Path, timeout: float | None
) -> None:
    process = sandbox.exec(["sh", "-c", "echo running; sleep 20"], timeout=timeout)
    assert next(iter(process.stdout.lines())) == "running"
    send(sandbox, signal.SIGSTOP, state)
    fails_in_time(process.result, OutcomeUnknownError)
    send(sandbox, signal.SIGCONT, state)
    assert sandbox.exec(["echo", "again"]).result(30).stdout == "again\n"


CALLS: dict[str, Callable[[Sandbox], Callable[[float], object]]] = {
    "read_file": lambda sandbox: sandbox.read_file("/etc/passwd").result,
    "write_file": lambda sandbox: sandbox.write_file("/tmp/x", b"x" * 3_000_000).result,
    "list_dir": lambda sandbox: sandbox.list_dir("/").result,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_to_a_stopped_agent_is_unavailable(sandbox: Sandbox, state: Path, name: str) -> None:
    send(sandbox, signal.SIGSTOP, state)
    fails_in_time(CALLS[name](sandbox), ProviderUnavailableError)
    send(sandbox, signal.SIGCONT, state)
    CALLS[name](sandbox)(30)


def test_a_stopped_sandbox_is_ended(sandbox: Sandbox, state: Path) -> None:
    send(sandbox, signal.SIGSTOP, state)
    begun = time.monotonic()
    sandbox.stop().result(30)
    assert time.monotonic() - begun < WITHIN
    assert os.listdir(state) == []
