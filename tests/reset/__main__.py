"""Print what becomes of a sandbox after each attack: python -m tests.reset [local] [docker]."""

import sys

from tests.reset.attacks import ATTACKS
from tests.reset.conftest import TARGETS
from tests.reset.jobs import Target


def main(names: list[str]) -> int:
    """The number of attacks that the next job sees or feels."""
    leaks = 0
    for name, mode in TARGETS:
        if names and name not in names and f"{name}-{mode}" not in names:
            continue
        target = Target(name, mode)
        try:
            for attack in ATTACKS:
                outcome, felt = target.felt_after_a_reset(attack)
                leaks += bool(felt)
                print(f"{name}-{mode}\t{attack}\t{'LEAK' if felt else outcome}", *felt, sep="\t")  # noqa: T201
        finally:
            target.close()
    return leaks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
