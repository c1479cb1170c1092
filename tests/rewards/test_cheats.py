"""No hostile submission is accepted, and each is the policy's own failure; test_table.py tries all on local."""

import pytest

from sandboxkit.integrations.rewards import HostCompare
from tests.docker_here import require_docker
from tests.rewards.trials import MIXES, TRIALS, Key, in_turn, refused, try_all

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    "every", [8, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_no_cheat_is_accepted_on_docker(every: int) -> None:
    # A sandbox costs more there, so each cheat meets one shape only, and the next another.
    require_docker()
    refused(try_all("docker", HostCompare, [*in_turn(1)][::every], reset=True))


def test_a_cheat_has_the_same_verdict_in_a_reset_sandbox() -> None:
    tried = [each for each in in_turn(1) if each[2] not in each[0].slow][::12]

    def told(reset: bool) -> dict[Key, tuple[object, ...]]:
        return {
            key: (each.outcome, each.score, each.attributable_to, each.trust)
            for key, each in try_all("local", HostCompare, tried, reset=reset).items()
        }

    assert told(reset=True) == told(reset=False)


def test_no_cheat_is_accepted_when_cases_share_a_process() -> None:
    shape = MIXES.shapes[0]
    tried = [(MIXES, shape, name) for name in MIXES.sample(8)]
    refused(try_all("local", lambda limits: HostCompare(limits, together=True), tried))


def test_every_honest_submission_is_accepted(provider: str) -> None:
    tried = [(trial, shape, None) for trial in TRIALS for shape in trial.shapes]
    verdicts = try_all(provider, HostCompare, tried)
    assert {key: each for key, each in verdicts.items() if each.score != 1} == {}
