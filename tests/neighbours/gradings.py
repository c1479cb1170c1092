"""Attacks on limits of the kernel, where they and their neighbours run, and verdicts on submissions there."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grading_session

FACTOR = 3
"""An honest `work(n)` is this many times what came `through` the resource, plus one."""

# Any: what TOML is.
_GIVEN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())
_CHEATS: dict[str, str] = _GIVEN["cheats"]
CHEATS = tuple(_CHEATS)


@dataclass(frozen=True, slots=True)
class Attack:
    """`grab` is source of a function `grab()`, which takes all it can get and returns how much.

    `through` is source of a function `through(n)`, which returns n after taking it through the
    resource. Both need nothing but the standard library.
    """

    name: str
    limit: str
    """The sysctl, rlimit or table of the kernel."""
    scope: Literal["user", "user namespace", "other namespace", "control group", "machine"]
    """Whom the kernel counts together."""
    grab: str
    through: str
    room: Literal["shared", "own", "loud"] = "shared"
    """`shared`: several attackers in one sandbox lose nothing. `own`: it uses up its sandbox's memory,
    processes or disk, so it is there alone. `loud`: it also keeps a processor busy."""
    known: dict[str, str] = field(default_factory=dict)
    """The places where it still changes a verdict of neighbours that use the same thing, with the reason;
    a test fails for one that no longer does."""


ATTACKS = {
    name: Attack(name=name, **{**given, "through": _GIVEN["through"][given["through"]]})
    for name, given in _GIVEN["attacks"].items()
}


def attacker(attack: Attack) -> str:
    """A program that grabs, prints one line "holding N" or "refused ERRNO", and stays."""
    return "\n".join((_GIVEN["both"], _GIVEN["grabbing"], attack.grab, _GIVEN["attacker"]))


def hostile(attack: Attack) -> str:
    """A submission that grabs when it is called, stays a little, and answers wrong."""
    return "\n".join((_GIVEN["both"], _GIVEN["grabbing"], attack.grab, _GIVEN["hostile"]))


def honest(attack: Attack) -> str:
    """A submission that does the neighbour's work and answers right."""
    return "\n".join((_GIVEN["both"], attack.through, _GIVEN["honest"]))


def cheating(attack: Attack, how: str) -> str:
    """A submission that does the neighbour's work and does not answer right."""
    return "\n".join((_GIVEN["both"], attack.through, _CHEATS[how]))


GRADER = HostCompare(Limits(timeout=8, wall=12, deadline=90))
CONCURRENCY = 4
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A provider, the profile of the attackers' sandboxes, and the pools in which their neighbours are graded."""

    name: str
    provider: str
    profile: Literal["standard", "strict"]
    pools: tuple[int, ...] = (0, CONCURRENCY)

    def attackers(self) -> Session:
        """Sandboxes for attackers, each bounded as one of a submission is."""
        return Session(
            self.provider, profile=self.profile, network="none", memory_mb=512, tags="neighbours"
        )

    def graders(self, pool: int) -> Session:
        """Sandboxes for the neighbours: graders' are strict, whatever the attackers' are."""
        return grading_session(
            GRADER, self.provider, max_concurrency=CONCURRENCY, pool=pool, tags="neighbours"
        )


PLACES = {
    place.name: place
    for place in (
        Neighbourhood("local", "local", "strict"),
        Neighbourhood("docker strict", "docker", "strict"),
        Neighbourhood("docker standard", "docker", "standard", (0,)),
    )
}


# Any: a task is a row of somebody's data set.
def _task(*numbers: int, judged: bool) -> Mapping[str, Any]:
    if not judged:
        cases = [{"args": [number], "expected": FACTOR * number + 1} for number in numbers]
        return {"entry_point": "work", "cases": cases}
    lines = [f"    assert candidate({number}) == {FACTOR * number + 1}\n" for number in numbers]
    return {"entry_point": "work", "test": f"def check(candidate):\n{''.join(lines)}"}


_TASKS = (_task(7, judged=False), _task(5, 11, judged=True))
"""One whose values are compared on the host, and one that a judge runs."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A neighbour's verdict, the last one of `masked` that told nothing and perhaps one that does."""

    attack: str
    """The attack that this submission is graded beside."""
    owed: float
    verdict: Verdict
    masked: int

    @property
    def changed(self) -> bool:
        """Whether an attacker decided it."""
        failed = self.verdict.outcome is Outcome.INFRA_ERROR
        return failed or self.verdict.score != self.owed

    @property
    def known(self) -> Collection[str]:
        """The places where the attack is known to change verdicts."""
        return ATTACKS[self.attack].known

    def __str__(self) -> str:
        kind = "an honest" if self.owed else "a cheating"
        return (
            f"{kind} neighbour of {self.attack}, masked {self.masked} times: "
            f"{self.verdict.outcome} {self.verdict.score:g}, {self.verdict.detail[:200]}"
        )


async def grade(
    session: Session, attack: str, submission: str, owed: float, *, judged: bool
) -> Graded:
    """Grade one, and once more if the infrastructure failed, as a trainer does."""
    masked = 0
    while True:
        verdict = await GRADER.grade(session, submission, _TASKS[judged])
        masked += verdict.outcome is Outcome.INFRA_ERROR
        if verdict.outcome is not Outcome.INFRA_ERROR or masked == _TRIES:
            return Graded(attack, owed, verdict, masked)
