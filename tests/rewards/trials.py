"""Tasks in several shapes of tests, a correct submission for each and hostile ones, in TOML files."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxkit.integrations.rewards import Grader, Limits, Verdict
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, fill, read

LIMITS = Limits(timeout=10, wall=20, memory_mb=256)
_BRIEF = Limits(timeout=1, wall=2, memory_mb=256)


@dataclass(frozen=True, slots=True)
class Shape:
    """Tests as a data set has them, and as `test_list` for graders that read nothing else."""

    name: str
    # Any: a row of a data set.
    task: Mapping[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A folder of data/trials: its trial.toml, and the table `cheats` of every other file."""

    honest: str
    cheats: Mapping[str, str]
    shapes: tuple[Shape, ...]
    slow: frozenset[str]
    """Cheats that never end, so that graders beside the submission need all of its time."""
    endless: frozenset[str]
    """More that use all of their time where a judge tests them."""

    def sample(self, every: int) -> list[str]:
        return sorted(self.cheats.keys() - self.slow)[::every]


# Any: see Shape.
def _shape(name: str, task: Mapping[str, Any], lines: Iterable[str] = ()) -> Shape:
    given = fill(list(lines), {"test": task.get("test", "")})
    return Shape(name, task, tuple(given or task.get("test_list", ())))


def _trial(name: str) -> Trial:
    folder = DATA / "trials" / name
    found = read(folder / "trial.toml")
    files = [read(path) for path in sorted(folder.glob("*.toml")) if path.stem != "trial"]
    cheats = {name: code for file in files for name, code in file["cheats"].items()}
    assert len(cheats) == sum(len(file["cheats"]) for file in files), "two cheats have one name"
    slow, endless = (frozenset(found.get(names, ())) for names in ("slow", "endless"))
    assert slow | endless <= cheats.keys()
    shapes = tuple(_shape(**shape) for shape in found["shapes"])
    return Trial(found["honest"], cheats, shapes, slow, endless)


TRIALS = tuple(map(_trial, ("mix", "apply", "tell", "tally", "program")))
MIXES = TRIALS[0]
HONEST = MIXES.honest
TESTS = list(MIXES.shapes[0].lines)

Tried = tuple[Trial, Shape, str | None]
"""A task, one of its shapes, and the name of the cheat; None for the correct submission."""
Key = tuple[str, str | None]


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
    """Grade each, in fresh sandboxes or in some that are reset; `as_lines` gives the tests as `test_list`."""
    groups: dict[Limits, list[tuple[Key, str, Mapping[str, Any]]]] = {LIMITS: [], _BRIEF: []}
    for trial, shape, name in tried:
        group = groups[_BRIEF if name in trial.slow | trial.endless else LIMITS]
        code = trial.honest if name is None else trial.cheats[name]
        task = {"test_list": list(shape.lines)} if as_lines else shape.task
        group.append(((shape.name, name), code, task))
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
