"""The attacks of one job on the next, as programs that are sent into a sandbox."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.data_here import beside

_FAMILIES = ("files", "memory", "places", "processes", "python", "sockets")


_PROGRAMS = beside(__file__, "programs.toml")


@dataclass(frozen=True)
class Attack:
    """What one job does to the next one that runs in its sandbox."""

    helpers: str
    """The functions of its family."""
    program: str
    felt: frozenset[str]
    """The providers on which the next job sees or feels it where nothing is reset: none where it is
    refused or dies alone, "maybe" where that is the kernel's to say."""
    costs: frozenset[str] = frozenset()
    """The providers on which a reset may give the sandbox up for it."""
    feel: str = "nothing"
    """The function by which the next job may feel it."""
    dies: bool = False
    """It ends itself, or more than that."""


def _family(name: str) -> dict[str, Attack]:
    given = beside(__file__, f"{name}.toml")
    helpers = given.pop("helpers")
    return {attack: _attack(helpers=helpers, **fields) for attack, fields in given.items()}


def _attack(felt: Sequence[str], costs: Sequence[str] = (), **given: Any) -> Attack:
    return Attack(felt=frozenset(felt), costs=frozenset(costs), **given)


ATTACKS = {name: attack for family in _FAMILIES for name, attack in _family(family).items()}


def attacker(name: str) -> str:
    attack = ATTACKS[name]
    body = textwrap.indent(attack.program, "    ")
    return f"{_PROGRAMS['means']}\n{attack.helpers}\ndef attack():\n{body}\nattack()\n"


def victim(name: str) -> str:
    """The program of job two: it prints what it sees, and what it feels of attack `name`."""
    attack = ATTACKS[name]
    first = "import sys\nSTARTED = sorted(sys.modules)"
    return f"{first}\n{_PROGRAMS['means']}\n{_PROGRAMS['probe']}\n{attack.helpers}\nlook({attack.feel})\n"
