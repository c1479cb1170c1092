"""A short soak: after each fault the session is as fast as before; and what would show that it is not."""

import subprocess
import threading
from pathlib import Path

import pytest

from sandboxkit import Session
from tests.chaos import _pace
from tests.chaos._pace import Pace
from tests.chaos._watchdog import Watchdog
from tests.chaos.soaks import run
from tests.docker_here import require_docker


@pytest.mark.parametrize("pool", [pytest.param(None, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize("provider", ["local", pytest.param("docker", marks=pytest.mark.nightly)])
def test_a_session_is_as_fast_as_before_after_each_fault(
    provider: str, pool: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if provider == "docker":
        require_docker()
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    soaked = run(provider, 20, seed=3, pool=pool)
    assert not soaked.failed, soaked.table()
    assert soaked.healed


def test_a_session_without_room_is_seen_not_to_be_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("local", max_concurrency=1) as session:
        pace = Pace(session)
        with session.sandbox() as sandbox, monkeypatch.context() as patch:
            sandbox.start().result(60)
            patch.setattr(_pace, "BACK_SECONDS", 0.5)
            patch.setattr(_pace, "_SLACK", 0.5)
            _, wrong = pace.back()
        assert "not as fast as before" in wrong
        assert pace.back()[1] == ""


def test_the_watchdog_says_where_everything_stands() -> None:
    barked, output = threading.Event(), []

    def bark(text: str) -> None:
        output.append(text)
        barked.set()

    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            with Watchdog(bark, patience=0.2):
                assert barked.wait(30)
        finally:
            child.kill()
    (text,) = output
    assert f"process {child.pid}: sleep 1000" in text
    assert "wchan" in text
    assert "test_the_watchdog_says_where_everything_stands" in text  # this thread's own stack
