"""python -m tests.neighbours: the mixed run of many gradings, or with --table what each attack gets."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from tests.neighbours.attack import ATTACKS, Attack
from tests.neighbours.mixed import mixed
from tests.neighbours.places import PLACES, Neighbourhood
from tests.neighbours.runs import Run, apart, batches


def main() -> int:
    """0 where no verdict was changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("places", nargs="*", default=[], help="local, docker-strict, ...")
    parser.add_argument("--table", action="store_true", help="one attack after another")
    parser.add_argument("--only", help="attacks whose name contains this")
    parser.add_argument("--honest", type=int, default=6, help="neighbours of each attack")
    parser.add_argument("--copies", type=int, default=1, help="attackers of each kind")
    parser.add_argument("--gradings", type=int, default=1000)
    parser.add_argument("--hostile", type=float, default=0.1, help="their share of the gradings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wanted = [name.replace("-", " ") for name in options.places] or list(PLACES)
    attacks = [each for each in ATTACKS.values() if (options.only or "") in each.name]
    changed = 0
    if options.table:
        changed = asyncio.run(
            print_table([PLACES[name] for name in wanted], attacks, options.honest, options.copies)
        )
    else:
        for name in wanted:
            found = asyncio.run(
                mixed(PLACES[name], attacks, options.gradings, options.hostile, options.seed)
            )
            print(found)  # noqa: T201
            changed += len(found.changed)
    return min(changed, 1)


async def print_table(
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


if __name__ == "__main__":
    sys.exit(main())
