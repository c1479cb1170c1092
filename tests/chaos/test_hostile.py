"""One hostile agent beside honest sandboxes of the same process: their latency and errors are the measure."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxkit import Operation, Sandbox, SandboxError, Session
from sandboxkit.providers.local import LocalProvider
from tests.agent.conftest import hostile_agents
from tests.chaos._census import visits
from tests.chaos.calls import TAG

MODES = ("flood", "deaf", "stubborn", "greedy")
_LONGEST = 30.0
"""The most seconds for a hostile sandbox's command, whose limit is a second, and its stop."""


@dataclass(slots=True)
class Beside:
    """The latency and errors of honest sandboxes, and how often a hostile agent was ended."""

    alone: float = 0.0
    """The 99th percentile of a command's seconds with nothing beside it."""
    beside: float = 0.0
    calls: int = 0
    ended: int = 0
    wrong: list[str] = field(default_factory=list)


def _call(honest: Iterator[Sandbox], seconds: float, found: Beside) -> float:
    """Run commands for so many seconds; return the 99th percentile of what they took."""

    def visit() -> None:
        ran = next(honest).exec(["echo", "here"], timeout=60).result(90)
        assert ran.stdout == "here\n"

    times = visits(visit, seconds, found.wrong)
    found.calls += len(times)
    return sorted(times)[len(times) * 99 // 100]


def _attack(session: Session, over: threading.Event, found: Beside) -> None:
    for mode in itertools.cycle(MODES):
        hostile = session.sandbox(env={"HOSTILE": mode}).start().result(60)
        began = time.monotonic()
        for call in (lambda: hostile.exec(["true"], timeout=1), lambda: hostile.stat("/")):  # noqa: B023
            with suppress(SandboxError, TimeoutError):
                call().result(_LONGEST)
        hostile.stop().result(_LONGEST)
        found.ended += 1
        if time.monotonic() - began > _LONGEST:
            found.wrong.append(f"{mode} was not ended in {_LONGEST:g} s")
        if over.is_set():
            return


def run(seconds: float) -> Beside:
    """Call honest sandboxes for so many seconds, a fifth of them with nothing beside."""
    found, over, provider = Beside(), threading.Event(), LocalProvider()
    with Session(provider, tags=TAG, lifetime=3600) as session:
        honest = itertools.cycle([session.sandbox().start().result(60) for _ in range(2)])
        found.alone = _call(honest, seconds / 5, found)
        with hostile_agents():
            attack = threading.Thread(target=_attack, args=(session, over, found))
            attack.start()
            found.beside = _call(honest, seconds * 4 / 5, found)
            over.set()
            attack.join()
    Operation(provider.aclose()).result(60)
    return found


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_hostile_agent_costs_honest_sandboxes_no_error(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("sandboxkit.providers._agent.client._LONG_KILL_PATIENCE", 2.0)
    found = run(seconds)
    assert found.wrong == []
    assert found.calls
    assert found.ended
