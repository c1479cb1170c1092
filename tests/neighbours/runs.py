"""One run: attackers that hold what they got, and the verdicts on their neighbours meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandboxkit import Process, Sandbox, SandboxError
from tests.neighbours.attack import Attack, attacker
from tests.neighbours.gradings import GRADER, Graded, grade_neighbours
from tests.neighbours.places import Neighbourhood, Victims

__all__ = ["Run", "apart", "batches", "control", "run"]

_PATIENCE = 40.0
_TOGETHER = 13
"""Attackers in one sandbox, whose processes and memory must be enough for all."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the attackers said, by name, and what became of their neighbours."""

    grips: dict[str, str]
    graded: dict[Victims, list[Graded]]

    def changed(self) -> list[str]:
        """The verdicts that the attackers decided."""
        return [
            f"{victims}: {each}"
            for victims, found in self.graded.items()
            for each in found
            if each.changed
        ]

    def hit(self) -> set[str]:
        """The attacks whose own neighbours got another verdict than they are owed."""
        return {each.attack for found in self.graded.values() for each in found if each.changed}


def batches(attacks: Sequence[Attack]) -> list[list[Attack]]:
    """Attacks that can be run at once: those that keep a processor busy are apart."""
    quiet = [attack for attack in attacks if attack.room != "loud"]
    loud = [attack for attack in attacks if attack.room == "loud"]
    return [batch for batch in (quiet, loud) if batch]


def _sandboxes(attacks: Sequence[Attack]) -> list[list[Attack]]:
    shared = [attack for attack in attacks if attack.room == "shared"]
    number = -(-len(shared) // _TOGETHER)
    # Attacks on one limit stand together in the corpus: they would get in each other's way.
    groups = [shared[at::number] for at in range(number)]
    return groups + [[attack] for attack in attacks if attack.room != "shared"]


async def run(
    place: Neighbourhood,
    attacks: Sequence[Attack],
    *,
    honest_each: int = 1,
    cheats: int = 2,
    copies: int = 1,
) -> Run:
    """Let `copies` of each attack grab, and grade their neighbours."""
    async with _attacked(place, attacks, copies) as grips:
        graded: dict[Victims, list[Graded]] = {
            victims: await _grade(place, victims, attacks, honest_each, cheats)
            for victims in place.victims
        }
    return Run(grips, graded)


async def apart(
    place: Neighbourhood, attacks: Sequence[Attack], honest_each: int, copies: int
) -> dict[str, Run]:
    """The run that tells about each attack: of a batch that changed nothing, or of it alone.

    Halves of a batch that changes verdicts are run apart, down to single attacks.
    """
    found = await run(place, attacks, honest_each=honest_each, copies=copies)
    if len(attacks) == 1 or not found.changed():
        return {attack.name: found for attack in attacks}
    # Verdicts show which attacks are likely ones: their own neighbours' work failed.
    suspects = [each for each in attacks if each.name in found.hit()]
    if 0 < len(suspects) <= len(attacks) // 2:
        parts = [[each] for each in suspects]
        parts.append([each for each in attacks if each not in suspects])
    else:
        middle = len(attacks) // 2
        parts = [list(attacks[:middle]), list(attacks[middle:])]
    runs: dict[str, Run] = {}
    for part in parts:
        runs |= await apart(place, part, honest_each, copies)
    return runs


async def control(place: Neighbourhood, attacks: Sequence[Attack]) -> Run:
    """Grade the same neighbours without attackers, in one of the ways."""
    victims = place.victims[-1]
    return Run({}, {victims: await _grade(place, victims, attacks, 1, 2)})


async def _grade(
    place: Neighbourhood, victims: Victims, attacks: Sequence[Attack], honest_each: int, cheats: int
) -> list[Graded]:
    async with place.graders(GRADER, victims) as session:
        return await grade_neighbours(session, attacks, honest_each, cheats)


@asynccontextmanager
async def _attacked(
    place: Neighbourhood, attacks: Sequence[Attack], copies: int
) -> AsyncIterator[dict[str, str]]:
    async with place.attackers() as session:
        groups = [group for _ in range(copies) for group in _sandboxes(attacks)]
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(_begin(session.sandbox(), group)) for group in groups]
        output: dict[str, list[str]] = {}
        for task in begun:
            for name, words in task.result().items():
                output.setdefault(name, []).append(words)
        yield {name: ", ".join(dict.fromkeys(words)) for name, words in output.items()}


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
