"""Runs: neighbours graded while attackers hold what they got, and many gradings, a share of them hostile."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandboxkit import Process, Sandbox, SandboxError
from tests.neighbours.gradings import (
    CHEATS,
    Attack,
    Graded,
    Neighbourhood,
    attacker,
    cheating,
    grade,
    honest,
    hostile,
)

_PATIENCE = 40.0
_TOGETHER = 13
"""Attackers in one sandbox, whose processes and memory must be enough for all."""

Submission = tuple[str, str, float, bool]
"""The attack beside it, its source, the score that it is owed, and whether a judge runs it."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the attackers said, by name, and what became of their neighbours."""

    grips: dict[str, str]
    graded: list[Graded]

    def changed(self) -> list[str]:
        """The verdicts that the attackers decided."""
        return [str(each) for each in self.graded if each.changed]

    def hit(self) -> set[str]:
        """The attacks whose own neighbours got another verdict than they are owed."""
        return {each.attack for each in self.graded if each.changed}


def _sandboxes(attacks: Sequence[Attack]) -> list[list[Attack]]:
    shared = [attack for attack in attacks if attack.room == "shared"]
    number = -(-len(shared) // _TOGETHER)
    # Attacks on one limit stand together in the corpus: they would get in each other's way.
    groups = [shared[at::number] for at in range(number)]
    return groups + [[attack] for attack in attacks if attack.room != "shared"]


async def run(place: Neighbourhood, attacks: Sequence[Attack]) -> Run:
    """Let each attack grab, and grade their neighbours: an honest one of each, and two cheats."""
    async with _attacked(place, attacks) as grips:
        return Run(grips, await neighbours(place, attacks, place.pools))


async def neighbours(
    place: Neighbourhood, attacks: Sequence[Attack], pools: Iterable[int]
) -> list[Graded]:
    """Grade an honest neighbour of each attack and two cheating ones, in each of the pools."""
    given: list[Submission] = [
        (attack.name, honest(attack), 1.0, bool(at % 2)) for at, attack in enumerate(attacks)
    ]
    for at in range(2):
        attack = attacks[at % len(attacks)]
        given.append((attack.name, cheating(attack, CHEATS[at % len(CHEATS)]), 0.0, bool(at % 2)))
    return await _grade(place, given, pools)


async def mixed(
    place: Neighbourhood, attacks: Sequence[Attack], gradings: int, share: float, seed: int
) -> list[Graded]:
    """Grade so many submissions, that share of them hostile, in each of the pools."""
    chance = random.Random(seed)
    number = round(gradings * share)
    kinds = [*[True] * number, *[False] * (gradings - number)]
    chance.shuffle(kinds)
    given: list[Submission] = []
    for bad in kinds:
        attack, judged = chance.choice(attacks), bool(chance.randrange(2))
        source = hostile(attack) if bad else honest(attack)
        given.append((attack.name, source, 0.0 if bad else 1.0, judged))
    return await _grade(place, given, place.pools)


def unexpected(place: Neighbourhood, graded: Sequence[Graded]) -> list[str]:
    """Describe the verdicts that somebody else decided, but for what is known."""
    return [str(each) for each in graded if each.changed and place.name not in each.known]


async def _grade(
    place: Neighbourhood, given: Sequence[Submission], pools: Iterable[int]
) -> list[Graded]:
    found: list[Graded] = []
    for pool in pools:
        async with place.graders(pool) as session, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(grade(session, attack, source, owed, judged=judged))
                for attack, source, owed, judged in given
            ]
        found += [task.result() for task in tasks]
    return found


@asynccontextmanager
async def _attacked(
    place: Neighbourhood, attacks: Sequence[Attack]
) -> AsyncIterator[dict[str, str]]:
    async with place.attackers() as session:
        async with asyncio.TaskGroup() as tasks:
            begun = [
                tasks.create_task(_begin(session.sandbox(), group)) for group in _sandboxes(attacks)
            ]
        yield {name: words for task in begun for name, words in task.result().items()}


async def _begin(sandbox: Sandbox, attacks: Sequence[Attack]) -> dict[str, str]:
    """Start attackers in a sandbox; what each says when it has all that it can get."""
    await sandbox.start()
    running = [sandbox.exec(["python3", "-c", attacker(attack)]) for attack in attacks]
    words = await asyncio.gather(*map(_grip, running))
    return {attack.name: output for attack, output in zip(attacks, words, strict=True)}


async def _grip(process: Process) -> str:
    try:
        async with asyncio.timeout(_PATIENCE):
            async for line in process.stdout.lines():
                return line.strip()
            result = await process
    except TimeoutError:
        return f"silent for {_PATIENCE:g} s"
    except SandboxError as error:
        return f"{type(error).__name__}: {error}"
    return f"ended with {result.returncode}: {result.stderr[-300:]}"
