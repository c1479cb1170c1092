"""One task in several shapes of tests, a correct submission and hostile ones, from data/cheats.toml."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxkit.integrations.rewards import Grader, Limits, Verdict
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, read

GIVEN = read(DATA / "cheats.toml")
HONEST = f"{GIVEN['honest']}\n"
CHEATS = {
    name: f"{GIVEN['prelude']}\n{code}"
    for name, code in [
        *GIVEN["cheats"].items(),
        *(
            (f"sends {each}", f"send({sent})\ndef mix(a, b): return 0")
            for each, sent in GIVEN["sent"].items()
        ),
        *(
            (f"sends {each} and ends", f"def mix(a, b): send({sent}); os._exit(0)")
            for each, sent in GIVEN["sent"].items()
        ),
    ]
}
SLOW = frozenset(GIVEN["slow"])
"""Cheats that never end."""
assert CHEATS.keys() >= SLOW
LIMITS = Limits(timeout=10, wall=20, memory_mb=256)
_BRIEF = Limits(timeout=1, wall=2, memory_mb=256)


@dataclass(frozen=True, slots=True)
class Shape:
    """Tests as a data set has them."""

    name: str
    # Any: a row of a data set.
    task: Mapping[str, Any]


SHAPES = tuple(Shape(**each) for each in GIVEN["shapes"])
TESTS = list(SHAPES[0].task["test_list"])
Tried = tuple[Shape, str | None]
"""A shape, and the name of a cheat; None for the correct submission."""
Key = tuple[str, str | None]


def in_turn() -> Iterator[Tried]:
    """Every cheat on one shape and the next on another, so that each shape meets many."""
    yield from zip(itertools.cycle(SHAPES), CHEATS, strict=False)


def try_all(
    provider: str,
    grader: Callable[[Limits], Grader],
    tried: Iterable[Tried],
    *,
    reset: bool = False,
) -> dict[Key, Verdict]:
    """Grade each, in fresh sandboxes or in some that are reset."""
    groups: dict[Limits, list[tuple[Key, str, Mapping[str, Any]]]] = {LIMITS: [], _BRIEF: []}
    for shape, name in tried:
        code = HONEST if name is None else CHEATS[name]
        groups[_BRIEF if name in SLOW else LIMITS].append(((shape.name, name), code, shape.task))
    verdicts: dict[Key, Verdict] = {}
    for limits, group in groups.items():
        submissions = [(str(key), code, task) for key, code, task in group]
        graded = grade_all(provider, grader(limits), submissions, in_turn=reset)
        verdicts |= {key: graded[str(key)] for key, _, _ in group}
    return verdicts


def refused(verdicts: Mapping[Key, Verdict]) -> None:
    """Check that none was accepted, and that each is the policy's doing."""
    assert verdicts
    assert sorted(str(key) for key, each in verdicts.items() if each.score != 0) == []
    assert {key: each.detail for key, each in verdicts.items() if each.reward is None} == {}
