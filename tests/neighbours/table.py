"""A table for the documents: each limit, what an attacker gets of it, and the verdicts that it changes."""

import sys
from collections.abc import Sequence

from tests.neighbours.attack import Attack
from tests.neighbours.culprits import apart
from tests.neighbours.places import Neighbourhood
from tests.neighbours.runs import Run, batches

__all__ = ["table"]


async def table(
    places: Sequence[Neighbourhood], attacks: Sequence[Attack], honest_each: int, copies: int
) -> int:
    """Print it in Markdown; the number of verdicts that were changed."""
    rows: dict[str, list[str]] = {each.name: [] for each in attacks}
    total = 0
    for place in places:
        for batch in batches(attacks):
            for name, found in (await apart(place, batch, honest_each, copies)).items():
                rows[name] += _cells(place, name, found)
                changed = found.changed()
                total += len(changed)
                for line in changed:
                    print(f"{place.name}: {name}: {line}", file=sys.stderr)  # noqa: T201
    names = [f"{place.name} {victims}" for place in places for victims in place.victims]
    heads = ["attack", "limit", "counted for", *_heads(places)]
    print("| " + " | ".join(heads) + " |")  # noqa: T201
    print("|" + " --- |" * len(heads))  # noqa: T201
    for attack in attacks:
        cells = [attack.name, attack.limit, attack.scope, *rows[attack.name]]
        print("| " + " | ".join(cells) + " |")  # noqa: T201
    print(f"\n{total} verdicts changed in {', '.join(names)}.")  # noqa: T201
    return total


def _heads(places: Sequence[Neighbourhood]) -> list[str]:
    heads = []
    for place in places:
        heads.append(f"{place.name}: got")
        heads += [f"changed, {victims}" for victims in place.victims]
    return heads


def _cells(place: Neighbourhood, name: str, found: Run) -> list[str]:
    cells = [found.grips[name].replace("|", "/")[:60]]
    for victims in place.victims:
        theirs = [each for each in found.graded[victims] if each.attack == name]
        cells.append(f"{sum(each.changed for each in theirs)} of {len(theirs)}")
    return cells
