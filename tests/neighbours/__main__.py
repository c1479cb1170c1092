"""python -m tests.neighbours: the mixed run of many gradings, or with --table what each attack gets."""

import argparse
import asyncio
import sys

from tests.neighbours.corpus import ATTACKS
from tests.neighbours.mixed import mixed
from tests.neighbours.places import PLACES
from tests.neighbours.table import table


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
            table([PLACES[name] for name in wanted], attacks, options.honest, options.copies)
        )
    else:
        for name in wanted:
            found = asyncio.run(
                mixed(PLACES[name], attacks, options.gradings, options.hostile, options.seed)
            )
            print(found)  # noqa: T201
            changed += len(found.changed)
    return min(changed, 1)


if __name__ == "__main__":
    sys.exit(main())
