"""Which attacks of a batch change verdicts: halves of it are run apart, down to single attacks."""

from collections.abc import Sequence

from tests.neighbours.attack import Attack
from tests.neighbours.places import Neighbourhood
from tests.neighbours.runs import Run, run

__all__ = ["apart"]


async def apart(
    place: Neighbourhood, attacks: Sequence[Attack], honest_each: int, copies: int
) -> dict[str, Run]:
    """The run that tells about each attack: of a batch that changed nothing, or of it alone."""
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
