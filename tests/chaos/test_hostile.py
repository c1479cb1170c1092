"""One hostile agent beside honest sandboxes of the same process: their latency and errors are the measure."""

import itertools
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from sandboxkit import Operation, Sandbox, SandboxError, Session
from sandboxkit.providers._agent import binary
from sandboxkit.providers.local import LocalProvider
from tests.agent.conftest import PROGRAMS
from tests.chaos.calls import TAG

MODES = ("flood", "deaf", "stubborn", "greedy")
_HONEST = 2
_LONGEST = 20.0
"""The most seconds for a command's limit of one second and for the stop of what does not obey."""


@dataclass(slots=True)
class Beside:
    """What honest sandboxes saw, and how often a hostile agent was ended."""

    alone: float = 0.0
    """The 99th percentile of a command's seconds with nothing beside it."""
    beside: float = 0.0
    calls: int = 0
    ended: int = 0
    wrong: list[str] = field(default_factory=list)


def _percentile(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def _call(honest: list[Sandbox], seconds: float, found: Beside) -> list[float]:
    """Run commands in turns for so many seconds; return how long each took."""
    times, end = list[float](), time.monotonic() + seconds
    for sandbox in itertools.cycle(honest):
        began = time.monotonic()
        if began > end:
            return times
        try:
            said = sandbox.exec(["echo", "here"], timeout=60).result(90).stdout
            found.wrong += [] if said == "here\n" else [f"it printed {said!r}"]
        except (SandboxError, TimeoutError) as error:
            found.wrong.append(f"an honest sandbox: {error!r}")
        times.append(time.monotonic() - began)
    raise AssertionError


def _attack(session: Session, over: threading.Event, found: Beside) -> None:
    for mode in itertools.cycle(MODES):
        if over.is_set():
            return
        hostile = session.sandbox(env={"HOSTILE": mode}).start().result(60)
        began = time.monotonic()
        with suppress(SandboxError):
            hostile.exec(["true"], timeout=1).result(_LONGEST)
        with suppress(SandboxError):
            hostile.stat("/").result(_LONGEST)
        hostile.stop().result(_LONGEST)
        found.ended += 1
        if time.monotonic() - began > _LONGEST:
            found.wrong.append(f"{mode} was not ended in {_LONGEST:g} s")


def run(seconds: float) -> Beside:
    """Call honest sandboxes for so many seconds, a fifth of them with nothing beside."""
    found, over, provider = Beside(), threading.Event(), LocalProvider()
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(provider, tags=TAG, lifetime=3600) as session,
    ):
        program = Path(folder, "agent")
        program.write_text(PROGRAMS["hostile"])
        for path in (program, program.parent):
            path.chmod(0o755)
        honest = [session.sandbox().start().result(60) for _ in range(_HONEST)]
        found.alone = _percentile(_call(honest, seconds / 5, found))
        with mock.patch.object(binary, "path", return_value=program):
            attack = threading.Thread(target=_attack, args=(session, over, found))
            attack.start()
            times = _call(honest, seconds * 4 / 5, found)
            over.set()
            attack.join()
        found.beside, found.calls = _percentile(times), len(times)
    Operation(provider.aclose()).result(60)
    return found


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_hostile_agent_costs_honest_sandboxes_no_error(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    found = run(seconds)
    assert found.wrong == []
    assert found.calls
    assert found.ended
