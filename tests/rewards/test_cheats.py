"""No hostile submission is accepted in isolation, and each is the policy's own failure; honest ones pass."""

from pathlib import Path

import pytest

from sandboxkit.integrations import rewards
from sandboxkit.integrations.rewards import HostCompare
from tests.docker_here import require_docker
from tests.rewards.trials import CHEATS, SHAPES, SLOW, Key, in_turn, refused, try_all

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    "reset", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["reset", "fresh"]
)
def test_no_cheat_is_accepted(reset: bool) -> None:
    verdicts = try_all("local", HostCompare, in_turn(), reset=reset)
    refused(verdicts)
    assert {verdict.trust for verdict in verdicts.values()} == {"isolated"}


@pytest.mark.parametrize(
    "every", [8, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_no_cheat_is_accepted_on_docker(every: int) -> None:
    require_docker()
    refused(try_all("docker", HostCompare, [*in_turn()][::every], reset=True))


def test_a_cheat_has_the_same_verdict_in_a_reset_sandbox() -> None:
    tried = [each for each in in_turn() if each[1] not in SLOW][::12]

    def told(reset: bool) -> dict[Key, tuple[object, ...]]:
        return {
            key: (each.outcome, each.score, each.attributable_to, each.trust)
            for key, each in try_all("local", HostCompare, tried, reset=reset).items()
        }

    assert told(reset=True) == told(reset=False)


def test_every_honest_submission_is_accepted(provider: str) -> None:
    verdicts = try_all(provider, HostCompare, [(shape, None) for shape in SHAPES])
    assert {key: each for key, each in verdicts.items() if each.score != 1} == {}


def test_the_document_counts_the_cheats() -> None:
    document = Path(str(rewards.__file__)).resolve().with_name("CHEATS.md").read_text()
    rows = "".join(f"| {shape.name} | 0 of {len(CHEATS)} |\n" for shape in SHAPES)
    assert f"| tests | accepted |\n| --- | --- |\n{rows}<!-- end of cheats -->" in document
