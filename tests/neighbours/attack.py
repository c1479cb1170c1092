"""One limit of the kernel, a program that uses it up, and a neighbour's work that needs a little of it."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
