"""Many gradings in one session, a share of them hostile: a submission's grade is its own doing."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxkit.integrations.rewards import Outcome
from tests.neighbours.attack import ATTACKS, Attack, honest, hostile
from tests.neighbours.gradings import GRADER, Graded, grade
from tests.neighbours.places import Neighbourhood

__all__ = ["Mixed", "mixed"]


@dataclass(frozen=True, slots=True)
class Mixed:
    """The gradings of one session."""

    place: str
    graded: list[Graded]

    @property
    def changed(self) -> list[Graded]:
        """Those that somebody else decided, but for what is known."""
        return [
            each
            for each in self.graded
            if each.changed and self.place not in ATTACKS[each.attack].known
        ]

    def __str__(self) -> str:
        honest_ones = [each for each in self.graded if each.owed]
        hostile_ones = [each for each in self.graded if not each.owed]
        masked = sum(bool(each.masked) for each in honest_ones)
        lost = sum(each.verdict.outcome is Outcome.INFRA_ERROR for each in honest_ones)
        lines = [
            f"{self.place}: {len(honest_ones)} honest, of which {masked} masked once and {lost} twice;"
            f" {len(hostile_ones)} hostile; {len(self.changed)} verdicts changed",
            *map(str, self.changed),
        ]
        return "\n".join(lines)


async def mixed(
    place: Neighbourhood, attacks: Sequence[Attack], gradings: int, share: float, seed: int
) -> Mixed:
    """Grade so many submissions, that share of them hostile, fresh and then in a pool."""
    chance = random.Random(seed)
    number = round(gradings * share)
    kinds = [*[True] * number, *[False] * (gradings - number)]
    chance.shuffle(kinds)
    submissions = [(bad, chance.choice(attacks), bool(chance.randrange(2))) for bad in kinds]
    found = []
    for victims in place.victims:
        async with place.graders(GRADER, victims) as session, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    grade(
                        session,
                        attack.name,
                        hostile(attack) if bad else honest(attack),
                        0.0 if bad else 1.0,
                        judged=judged,
                    )
                )
                for bad, attack, judged in submissions
            ]
        found += [task.result() for task in tasks]
    return Mixed(place.name, found)
