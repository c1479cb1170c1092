"""Trying cheats on a grader: those that never end get less time."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from sandboxkit.integrations.rewards import Grader, Limits, Verdict
from tests.rewards.cheats import SLOW, TRIALS
from tests.rewards.conftest import grade_all
from tests.rewards.corpus.shapes import Graded, Shape, Trial

Tried = tuple[Trial, Shape, str | None]
"""A task, one of its shapes, and the name of the cheat; None for the correct submission."""
Key = tuple[str, str | None]
"""The names of shape and cheat."""

LIMITS = Limits(timeout=10, wall=20, memory_mb=256)
_BRIEF = replace(LIMITS, timeout=2, wall=3)
_ENDLESS = SLOW | {
    "calls with what never ends",
    "calls without end",
    "changes the number five",
    "guesses until it may",
    "prints without end",
    "puts in too much",
}
"""Cheats that use all of their time. SLOW has those that hold up the graders of tests/rewards/test_table.py."""


def in_turn(shapes_of_each: int) -> Iterator[Tried]:
    """Every cheat on so many shapes, and the next on others, so that all meet many."""
    for trial in TRIALS:
        turn = itertools.cycle(trial.shapes)
        for name in trial.cheats:
            for shape in itertools.islice(turn, min(shapes_of_each, len(trial.shapes))):
                yield trial, shape, name


def try_all(
    provider: str,
    grader: Callable[[Limits], Grader],
    tried: Iterable[Tried],
    *,
    as_lines: bool = False,
    reset: bool = False,
) -> dict[Key, Verdict]:
    """Grade each; with `as_lines` by the tests as `test_list`, for graders that read no others.

    With `reset` they take turns in a few sandboxes, else each run has a fresh one.
    """
    groups: dict[Limits, dict[str, tuple[Key, Graded]]] = {LIMITS: {}, _BRIEF: {}}
    for trial, shape, name in tried:
        group = groups[_BRIEF if name in _ENDLESS else LIMITS]
        code = trial.honest if name is None else trial.cheats[name]
        task = {"test_list": list(shape.lines)} if as_lines else shape.task
        group[str(len(group))] = (shape.name, name), (str(len(group)), code, task)
    verdicts: dict[Key, Verdict] = {}
    for limits, group in groups.items():
        submissions = [each for _, each in group.values()]
        graded = grade_all(provider, grader(limits), submissions, in_turn=reset)
        verdicts |= {group[number][0]: verdict for number, verdict in graded.items()}
    return verdicts


def refused(verdicts: Mapping[Key, Verdict]) -> None:
    """Check that none was accepted, and that each is the policy's doing."""
    assert verdicts
    accepted = sorted(str(key) for key, each in verdicts.items() if each.score != 0)
    assert accepted == []
    excused = {key: each.detail for key, each in verdicts.items() if each.reward is None}
    assert excused == {}
