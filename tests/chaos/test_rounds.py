"""Short runs of `make chaos`: killed clients, calls whose connections break, and a session after each fault."""

from pathlib import Path
from pprint import pformat

import pytest

from tests.chaos import targets
from tests.chaos.__main__ import SETTINGS, failures, rounds
from tests.chaos.round import KINDS, Setting, kind_of
from tests.chaos.soak import run
from tests.docker_here import require_docker

# Signals, and at Docker also its connection: the six rounds go on to the list's beginning.
SEEDS = {"local": 0, "docker": 6}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("provider", ["local", pytest.param("docker", marks=pytest.mark.nightly)])
def test_clients_that_end_in_any_way_leave_nothing(provider: str) -> None:
    if provider == "docker":
        require_docker()
    assert failures(rounds(SETTINGS[provider], 6, SEEDS[provider])) == []


def test_what_a_client_forgets_is_found() -> None:
    nobody = "NOBODY_READS_THIS=tcp://127.0.0.1:1"
    setting = Setting("local", nobody, alone=0.5, swept=0.5, options=("leaky",))
    assert {kind_of(seed, setting) for seed in range(len(KINDS))} == set(KINDS)
    (outcome,) = rounds(setting, 1, KINDS.index("reset"))
    assert [text for text in outcome.wrong if text.startswith("left open")] == [
        "left open: descriptor /dev/null (1 more)",
        "left open: thread forgotten (1 more)",
    ]
    ghost, process = outcome.left
    assert ghost == "a ghost"
    assert process.startswith("live process ")
    assert process.endswith(" sleep 1000")
    (message,) = failures([outcome])
    assert message.startswith("round 8 (reset): ")
    assert "left behind: a ghost" in message


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_call_whose_connection_breaks_raises_a_typed_error_in_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("docker"):
        require_docker()
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    tally = targets.run(name, 25, seed=1)
    assert tally.calls.total() == 25
    assert tally.faults.total() > 0
    assert not tally.failed, pformat(tally)


@pytest.mark.parametrize("pool", [pytest.param(None, marks=pytest.mark.nightly), 2])
def test_a_session_is_as_fast_as_before_after_each_fault(
    pool: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    soaked = run(20, seed=3, pool=pool)
    assert not soaked.failed, pformat(soaked)
    assert soaked.healed
