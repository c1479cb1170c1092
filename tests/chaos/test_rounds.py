"""A short run of `make chaos`: clients that are killed and cut off at random leave nothing."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import SETTINGS
from tests.chaos.round import KINDS, Setting, kind_of
from tests.chaos.run import failures, rounds
from tests.docker_here import require_docker
from tests.kubernetes.here import new_namespace, require_cluster

# Signals, and at Docker also its connection: the six rounds go on to the list's beginning.
SEEDS = {"local": 0, "docker": 6, "kubernetes": 6}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("provider", ["local", pytest.param("docker", marks=pytest.mark.nightly)])
def test_clients_that_end_in_any_way_leave_nothing(provider: str) -> None:
    if provider == "docker":
        require_docker()
    outcomes = rounds(SETTINGS[provider], 6, SEEDS[provider])
    assert failures(outcomes) == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_nothing_is_left_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_KUBERNETES_LEASE", "10")
    with require_cluster().held(), new_namespace():
        outcomes = rounds(SETTINGS["kubernetes"], 6, SEEDS["kubernetes"])
        assert failures(outcomes) == []


def test_the_seeds_go_through_all_kinds() -> None:
    assert {kind_of(seed, SETTINGS["docker"]) for seed in range(len(KINDS))} == set(KINDS)


class Haunted:
    """A place where there is always something."""

    def __init__(self, tag: str, folder: Path) -> None:
        """Whatever they are."""

    def watch(self) -> None:
        """Nothing to learn."""

    def left(self) -> set[str]:
        return {"a ghost"}


def test_what_a_client_forgets_is_found() -> None:
    setting = Setting(
        "local",
        places="tests.chaos.test_rounds:Haunted",
        through="NOBODY_READS_THIS=tcp://127.0.0.1:1",
        client="tests.chaos.leaky",
        alone=0.5,
        swept=0.5,
    )
    (outcome,) = rounds(setting, 1, KINDS.index("reset"))
    assert [text for text in outcome.wrong if text.startswith("left open")] == [
        "left open: descriptor /dev/null (1 more)",
        "left open: thread forgotten (1 more)",
    ]
    ghost, process = outcome.left
    assert ghost == "a ghost"
    assert process.startswith("live process ")
    assert process.endswith(" sleep 1000 ")
    (message,) = failures([outcome])
    assert message.startswith("round 8 (reset): ")
    assert "left behind: a ghost" in message
