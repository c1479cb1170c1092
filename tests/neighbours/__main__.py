"""python -m tests.neighbours: the mixed run of many gradings, or with --table what each attack gets."""

import argparse
import asyncio
import sys
from collections import Counter

from tests.neighbours.gradings import ATTACKS, PLACES
from tests.neighbours.runs import mixed, run, unexpected


def main() -> int:
    """0 where no verdict was changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.neighbours", description=__doc__)
    parser.add_argument("places", nargs="*", default=[], help="local, docker-strict, ...")
    parser.add_argument("--table", action="store_true", help="one attack after another")
    parser.add_argument("--gradings", type=int, default=1000)
    parser.add_argument("--hostile", type=float, default=0.1, help="their share of the gradings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    attacks, failed = list(ATTACKS.values()), False
    if options.table:
        print("| place | attack | limit | counted for | got | changed |\n|" + " --- |" * 6)  # noqa: T201
    for name in [each.replace("-", " ") for each in options.places] or list(PLACES):
        place = PLACES[name]
        if not options.table:
            graded = asyncio.run(
                mixed(place, attacks, options.gradings, options.hostile, options.seed)
            )
            kinds = Counter((each.owed, each.verdict.outcome, each.masked) for each in graded)
            for (owed, outcome, masked), count in kinds.items():
                print(f"{name}: {count} owed {owed:g}, {outcome}, masked {masked} times")  # noqa: T201
            changed = unexpected(place, graded)
            print(*changed, sep="\n")  # noqa: T201
            failed |= bool(changed)
        for attack in attacks if options.table else ():
            found = asyncio.run(run(place, [attack]))
            got = found.grips[attack.name].replace("|", "/")[:60]
            part = f"{len(found.changed())} of {len(found.graded)}"
            cells = [name, attack.name, attack.limit, attack.scope, got, part]
            print("| " + " | ".join(cells) + " |")  # noqa: T201
            failed |= bool(found.changed())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
