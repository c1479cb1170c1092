"""The attacks of one job on the next, as programs that are sent into a sandbox."""

import inspect
import re
from types import ModuleType

from tests.reset import probe
from tests.reset.attacks import files, means, memory, places_themselves, processes, python, sockets

__all__ = ["ATTACKS", "attacker", "victim"]

_MODULES = (files, places_themselves, processes, memory, sockets, python)
ATTACKS = means.ATTACKS


def _source(module: ModuleType) -> str:
    """What a module says, without its imports from here: all of it is one program."""
    text = inspect.getsource(module)
    return re.sub(r"^from tests\.\S+ import (\([^)]*\)|.*)$", "", text, flags=re.MULTILINE)


def _home(name: str) -> ModuleType:
    return next(module for module in _MODULES if hasattr(module, name))


def attacker(name: str) -> str:
    """The program of job one."""
    return f"{_source(means)}\n{_source(_home(name))}\nATTACKS[{name!r}].run()\n"


def victim(name: str | None = None) -> str:
    """The program of job two: it prints what it sees, and what it feels of attack `name`."""
    own = "" if name is None else _source(_home(name))
    feel = "nothing" if name is None else f"ATTACKS[{name!r}].feel"
    first = "import sys\nSTARTED = sorted(sys.modules)"
    return f"{first}\n{_source(means)}\n{_source(probe)}\n{own}\nlook({feel})\n"
