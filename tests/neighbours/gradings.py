"""Honest and cheating submissions, graded while attackers live."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict
from tests.neighbours.attack import CHEATS, FACTOR, Attack, cheating, honest

__all__ = ["GRADER", "TASKS", "Graded", "grade", "grade_neighbours"]

GRADER = HostCompare(Limits(timeout=8, wall=12, deadline=90))
_TRIES = 2


# Any: a task is a row of somebody's data set.
def _task(*numbers: int, judged: bool) -> Mapping[str, Any]:
    if not judged:
        cases = [{"args": [number], "expected": FACTOR * number + 1} for number in numbers]
        return {"entry_point": "work", "cases": cases}
    lines = [f"    assert candidate({number}) == {FACTOR * number + 1}\n" for number in numbers]
    return {"entry_point": "work", "test": f"def check(candidate):\n{''.join(lines)}"}


TASKS = (_task(7, judged=False), _task(5, 11, judged=True))
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
        if self.verdict.outcome is Outcome.INFRA_ERROR:
            return True
        return self.verdict.score != self.owed

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
    task = TASKS[judged]
    verdict = await GRADER.grade(session, submission, task)
    masked = int(verdict.outcome is Outcome.INFRA_ERROR)
    while verdict.outcome is Outcome.INFRA_ERROR and masked < _TRIES:
        verdict = await GRADER.grade(session, submission, task)
        masked += verdict.outcome is Outcome.INFRA_ERROR
    return Graded(attack, owed, verdict, masked)


async def grade_neighbours(
    session: Session, attacks: Sequence[Attack], honest_each: int, cheats: int
) -> list[Graded]:
    """Grade so many honest submissions for each attack, and so many cheating ones in all."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                grade(session, attack.name, honest(attack), 1.0, judged=bool(turn % 2))
            )
            for place, attack in enumerate(attacks)
            for turn in range(place, place + honest_each)
        ]
        tasks += [
            group.create_task(
                grade(
                    session,
                    attacks[turn % len(attacks)].name,
                    cheating(attacks[turn % len(attacks)], CHEATS[turn % len(CHEATS)]),
                    0.0,
                    judged=bool(turn % 2),
                )
            )
            for turn in range(cheats)
        ]
    return [task.result() for task in tasks]
