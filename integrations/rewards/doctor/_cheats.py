"""Cheats: submissions that do not solve the task, built from the names that its tests use."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxkit.integrations.rewards._parse import parse
from sandboxkit.integrations.rewards.doctor._names import CheatNames

_LITERALS = "compare each result with a literal value, for inputs with different results"
_KINDS = "compare the type and the parts of each result with literals"
_COPIES = "copy each argument before the call, or write the expected value as a literal"
_MORE = "test more inputs, also some that the prompt does not show"
_RAISES = "also test the results of calls that raise nothing, and that other errors do not pass"


@dataclass(frozen=True, slots=True)
class Cheat:
    """A cheating submission, its name, and the remedy for the task's author."""

    name: str
    code: str
    remedy: str


_SHIFTER = """
class Shifter:
    def __init__(self, *a, **k): self.asked = 0
    def turn(self):
        self.asked += 1
        return self.asked
    def __call__(self, *a, **k): return Shifter()
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Shifter()
    def __float__(self): return 0.0 if self.turn() < 2 else float(self.asked)
    def __int__(self): return int(float(self))
    __index__ = __int__
    def __len__(self): return 1
    def __iter__(self): return iter([Shifter()])
    def __getitem__(self, key): return Shifter()
    def __contains__(self, item): return True
    def __bool__(self): return True
    def __eq__(self, other): return True
    def __ne__(self, other): return self.turn() % 2 == 0
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return self.turn()
    def __add__(self, other): return Shifter()
    __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __add__
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmod__ = __rpow__ = __add__
    def __abs__(self): return 0
    def __round__(self, *a): return 0
    def __neg__(self): return self
    def __enter__(self): return self
    def __exit__(self, *a): return True
"""
_EQUAL = """
class Equal:
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return Equal()
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 0
"""
_CLEAR = """
def clear(*a, **k):
    for each in [*a, *k.values()]:
        if hasattr(each, "clear"):
            each.clear()
    return {returns}
"""
_EMPTY = """
class Empty:
    def __init__(self, *a, **k): pass
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return lambda *a, **k: {returns}
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __contains__(self, item): return False
"""


def cheats(names: CheatNames, reference: str) -> list[Cheat]:
    """Return the cheats that apply to the task, in the order in which they are reported."""
    found = [Cheat("an empty submission", "pass\n", _LITERALS), *_early_exits(names)]
    if names.printed is not None:
        code = f"import sys\nsys.stdout.write({names.printed!r})\n"
        found.append(Cheat("a program that always prints the first expected output", code, _MORE))
    if names.own:
        found += [*_constants(names), *_arguments(names), *_objects(names)]
        found += _exceptions(names, reference)
        found += _overrides(names)
    return list({cheat.code: cheat for cheat in found}.values())


def _early_exits(names: CheatNames) -> Iterator[Cheat]:
    remedy = "use HostCompare, which does not trust a process's exit status"
    for call in ("os._exit(0)", "sys.exit(0)"):
        yield Cheat(f"{call} when it is loaded", f"import os, sys\n{call}\n", remedy)
        if names.own:
            code = _defined(names, f"import os, sys\ndef leave(*a, **k): {call}\n", "leave")
            yield Cheat(f"{call} when it is called", code, remedy)


def _constants(names: CheatNames) -> Iterator[Cheat]:
    for value in ("None", "True", "False", "0", "''", "[]", "iter(())"):
        code = _defined(names, f"def constant(*a, **k): return {value}\n", "constant")
        what = "an empty iterator" if value == "iter(())" else value
        yield Cheat(f"always returns {what}", code, _LITERALS)
    if names.answer is not None:
        code = _defined(names, f"def constant(*a, **k): return {names.answer}\n", "constant")
        yield Cheat("always returns the first expected value", code, _MORE)


def _arguments(names: CheatNames) -> Iterator[Cheat]:
    first = "def first(*a, **k): return a[0] if a else None\n"
    yield Cheat("returns its argument", _defined(names, first, "first"), _LITERALS)
    for value in ("0", "None", "[]", "a[0] if a else None"):
        what = "the argument" if value.startswith("a[0]") else value
        code = _defined(names, _CLEAR.format(returns=value), "clear")
        yield Cheat(f"clears its arguments and returns {what}", code, _COPIES)


def _objects(names: CheatNames) -> Iterator[Cheat]:
    code = _defined(names, _SHIFTER, "Shifter()", classes="Shifter")
    yield Cheat("an object whose value changes with each operation", code, _KINDS)
    code = _defined(names, _EQUAL, "Equal()", classes="Equal")
    yield Cheat("an object that equals everything", code, _KINDS)
    if names.classes:
        for value in ("None", "True", "0", "self"):
            empty = f"def constant(*a, **k): return None\n{_EMPTY.format(returns=value)}"
            code = _defined(names, empty, "constant", classes="Empty")
            what = f"a class without state whose methods return {value}"
            yield Cheat(what, code, "test an object's state after calling its methods")


def _exceptions(names: CheatNames, reference: str) -> Iterator[Cheat]:
    for name in dict.fromkeys(names.raised):
        made = f"class {name}(Exception): pass\n" if name in names.exceptions else ""
        code = _defined(names, f"{made}def fail(*a, **k): raise {name}('no')\n", "fail", made=made)
        yield Cheat(f"always raises {name}", code, _RAISES)
    if names.exceptions:
        for base in ("AssertionError", "Exception"):
            renamed = "".join(f"{name} = {base}\n" for name in names.exceptions)
            yield Cheat(
                f"its exceptions are {base}, and it raises none",
                f"{_without_raises(reference)}\n{renamed}",
                "check outside the `try` block that the call raised, as unittest's assertRaises does",
            )


def _overrides(names: CheatNames) -> Iterator[Cheat]:
    if names.helpers:
        true = "".join(f"{name} = yes\n" for name in names.helpers)
        code = _defined(names, "def yes(*a, **k): return True\n", "yes") + true
        yield Cheat("replaces the names that the tests use", code, _LITERALS)


def _defined(
    names: CheatNames, helper: str, value: str, *, classes: str | None = None, made: str = ""
) -> str:
    """Return source that binds every name of the submission to `value`, except some classes.

    Classes are bound to `classes` if that is given. Exception classes are defined as new classes,
    unless the source `made` defines them.
    """
    lines = [f"{name} = {value}" for name in names.functions]
    lines += [f"{name} = {classes or value}" for name in names.classes]
    if not made:
        lines += [f"class {name}(Exception): pass" for name in names.exceptions]
    return "\n".join([helper, *lines, ""])


class _NoRaise(ast.NodeTransformer):
    def visit_Raise(self, node: ast.Raise) -> ast.Pass:
        return ast.copy_location(ast.Pass(), node)


def _without_raises(reference: str) -> str:
    return ast.unparse(_NoRaise().visit(parse(reference)))
