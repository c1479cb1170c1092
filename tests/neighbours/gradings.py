"""Where attackers and their neighbours run, and the verdicts on honest, cheating and hostile submissions there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sandboxkit import Session
from sandboxkit.integrations.rewards import (
    HostCompare,
    Limits,
    Outcome,
    Verdict,
    grading_session,
)
from tests.neighbours.attack import ATTACKS, FACTOR

GRADER = HostCompare(Limits(timeout=8, wall=12, deadline=90))
CONCURRENCY = 4
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A provider, the profile of the attackers' sandboxes, and the pools in which their neighbours are graded."""

    name: str
    provider: str
    profile: Literal["standard", "strict"]
    pools: tuple[int, ...] = (0, CONCURRENCY)

    def attackers(self) -> Session:
        """Sandboxes for attackers, each bounded as one of a submission is."""
        return Session(
            self.provider, profile=self.profile, network="none", memory_mb=512, tags="neighbours"
        )

    def graders(self, pool: int) -> Session:
        """Sandboxes for the neighbours: graders' are strict, whatever the attackers' are."""
        return grading_session(
            GRADER, self.provider, max_concurrency=CONCURRENCY, pool=pool, tags="neighbours"
        )


PLACES = {
    place.name: place
    for place in (
        Neighbourhood("local", "local", "strict"),
        Neighbourhood("docker strict", "docker", "strict"),
        Neighbourhood("docker standard", "docker", "standard", (0,)),
    )
}


# Any: a task is a row of somebody's data set.
def _task(*numbers: int, judged: bool) -> Mapping[str, Any]:
    if not judged:
        cases = [{"args": [number], "expected": FACTOR * number + 1} for number in numbers]
        return {"entry_point": "work", "cases": cases}
    lines = [f"    assert candidate({number}) == {FACTOR * number + 1}\n" for number in numbers]
    return {"entry_point": "work", "test": f"def check(candidate):\n{''.join(lines)}"}


_TASKS = (_task(7, judged=False), _task(5, 11, judged=True))
"""One whose values are compared on the host, and one that a judge runs."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A neighbour's verdict, the last one of `masked` that told nothing and perhaps one that does."""

    attack: str
    """The attack that this submission is graded beside."""
    owed: float
    verdict: Verdict
    masked: int

    @property
    def changed(self) -> bool:
        """Whether an attacker decided it."""
        failed = self.verdict.outcome is Outcome.INFRA_ERROR
        return failed or self.verdict.score != self.owed

    def is_known(self, place: Neighbourhood) -> bool:
        """Whether the attack is known to change verdicts there."""
        return place.name in ATTACKS[self.attack].known

    def __str__(self) -> str:
        kind = "an honest" if self.owed else "a cheating"
        return (
            f"{kind} neighbour of {self.attack}, masked {self.masked} times: "
            f"{self.verdict.outcome} {self.verdict.score:g}, {self.verdict.detail[:200]}"
        )


async def grade(
    session: Session, attack: str, submission: str, owed: float, *, judged: bool
) -> Graded:
    """Grade one, and once more if the infrastructure failed, as a trainer does."""
    masked = 0
    while True:
        verdict = await GRADER.grade(session, submission, _TASKS[judged])
        masked += verdict.outcome is Outcome.INFRA_ERROR
        if verdict.outcome is not Outcome.INFRA_ERROR or masked == _TRIES:
            return Graded(attack, owed, verdict, masked)
