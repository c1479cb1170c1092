"""A task's tests as cases: what to evaluate in the sandbox, and what to expect on the host."""

import ast
import builtins
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._in_sandbox.encode import encode
from sandboxkit.integrations.rewards._notation import read, source
from sandboxkit.integrations.rewards._tests import parsed
from sandboxkit.integrations.rewards._values import Comparison, Wire

_WRAPPERS = frozenset(
    (
        "abs",
        "bool",
        "dict",
        "float",
        "frozenset",
        "int",
        "len",
        "list",
        "max",
        "min",
        "reversed",
        "round",
        "set",
        "sorted",
        "str",
        "sum",
        "tuple",
    )
)
"""Builtins that tests put around a call; what they make of it is a claimed value all the same."""

PYTHON_EQUAL = Comparison(strict=False)


@dataclass(frozen=True, slots=True)
class FunctionCase:
    """An expression or a test to run over the submission; `expected` stays on the host."""

    source: str
    expected: Wire
    comparison: Comparison = PYTHON_EQUAL
    expression: bool = True
    """False: statements, of which the value is whether they ran without an AssertionError."""


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """What a program reads, and what it must print."""

    stdin: str
    stdout: str
    comparison: Comparison = field(default=Comparison())


Case = FunctionCase | ProgramCase


def declared(task: Mapping[str, Any]) -> list[Case]:
    """The task's `cases`, which are given as values. Raises ConfigurationError."""
    comparison = Comparison(
        bool(task.get("strict", True)),
        _tolerance(task, "rel_tol"),
        _tolerance(task, "abs_tol"),
    )
    cases = task.get("cases", ())
    if not isinstance(cases, Sequence) or isinstance(cases, str):
        raise ConfigurationError(f"the task's cases are {type(cases).__name__}, not a list")
    return [_declared(each, task, comparison) for each in cases]


def _declared(case: Any, task: Mapping[str, Any], comparison: Comparison) -> Case:
    match case:
        case {"stdin": str(stdin), "stdout": str(stdout)}:
            return ProgramCase(stdin, stdout, comparison)
        case {"expected": expected}:
            name = task.get("entry_point")
            if not isinstance(name, str) or not name.isidentifier():
                raise ConfigurationError(
                    f"the task's entry_point={name!r} is not the name of a function"
                )
            args = [source(read(each)) for each in case.get("args", ())]
            args += [
                f"{key}={source(read(value))}" for key, value in case.get("kwargs", {}).items()
            ]
            return FunctionCase(f"{name}({', '.join(args)})", plain(read(expected)), comparison)
        case _:
            raise ConfigurationError(
                f"case {str(case)[:100]} has neither stdin and stdout nor args and expected"
            )


def _tolerance(task: Mapping[str, Any], name: str) -> float:
    value = task.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigurationError(f"the task's {name}={value!r} is not a number from 0")
    return float(value)


def plain(value: Any) -> Wire:
    """A trusted value in the form in which it is compared. Raises ConfigurationError."""
    wire = encode(value)
    if "opaque" in str(wire) and _has_opaque(wire):
        raise ConfigurationError(f"expected value {str(value)[:80]} is not plain data")
    return wire


def _has_opaque(wire: Any) -> bool:
    return isinstance(wire, list) and (wire[:1] == ["opaque"] or any(map(_has_opaque, wire)))


def from_assert(line: str, helpers: Set[str] = frozenset()) -> FunctionCase | None:
    """Take `assert f(x) == y` apart, or None where that cannot be done without trust: a judge's.

    Only a call of the submission's own function, bare or in a builtin such as sorted(), goes
    into the sandbox, never a comparison: its truth would be the sandbox's word. `helpers` are
    names that are not the submission's.
    """
    match parsed(line).body:
        case [ast.Assert(test=test)]:
            return _from_test(test, helpers)
        case _:
            return None


def _from_test(test: ast.expr, helpers: Set[str]) -> FunctionCase | None:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            for call, other in ((left, right), (right, left)):
                known, value = _literal(other)
                if known and _is_call(call, helpers):
                    return FunctionCase(ast.unparse(call), plain(value))
        case ast.Compare(
            left=call,
            ops=[ast.Is()],
            comparators=[ast.Constant(value=True | False | None) as const],
        ) if _is_call(call, helpers):
            return FunctionCase(ast.unparse(call), plain(const.value), Comparison(strict=True))
        case ast.UnaryOp(op=ast.Not(), operand=call) if _is_call(call, helpers):
            return FunctionCase(f"bool({ast.unparse(call)})", plain(False))
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="math"), attr="isclose"), args=[call, other]
        ) if _is_call(call, helpers):
            known, value = _literal(other)
            options = {each.arg: _literal(each.value) for each in test.keywords}
            if known and all(good for good, _ in options.values()):
                return FunctionCase(
                    ast.unparse(call),
                    plain(value),
                    Comparison(
                        strict=False,
                        rel_tol=float(options.get("rel_tol", (True, 1e-9))[1]),
                        abs_tol=float(options.get("abs_tol", (True, 0.0))[1]),
                    ),
                )
        case _ if _is_call(test, helpers):
            return FunctionCase(f"bool({ast.unparse(test)})", plain(True))
    return None


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError):
        return False, None


def _is_call(node: ast.expr, helpers: Set[str]) -> bool:
    """Whether it is a call of the submission, bare or in builtins that only convert."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if not hasattr(builtins, name):
                return name not in helpers
            rest = [*args, *(each.value for each in keywords)]
            if all(_literal(each)[0] for each in rest):
                return True  # the submission's own, under a builtin's name
            return (
                name in _WRAPPERS
                and bool(args)
                and _is_call(args[0], helpers)
                and all(_literal(each)[0] for each in rest[1:])
            )
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id=name), args=[]))):
            return not hasattr(builtins, name) and name not in helpers  # Solution().solve(...)
        case ast.Subscript(value=value, slice=index):
            return _is_call(value, helpers) and _literal(index)[0]
        case _:
            return False


def merged(cases: Sequence[Case]) -> list[Case]:
    """The same with as few function cases as can be: lists of values instead of values."""
    groups: dict[Comparison, list[FunctionCase]] = {}
    for case in cases:
        if isinstance(case, FunctionCase):
            groups.setdefault(case.comparison, []).append(case)
    programs: list[Case] = [case for case in cases if isinstance(case, ProgramCase)]
    return programs + [
        FunctionCase(
            f"[{', '.join(case.source for case in group)}]",
            ["list", [case.expected for case in group]],
            comparison,
        )
        for comparison, group in groups.items()
    ]


def bound_names(source: str) -> set[str]:
    """The names that trusted code defines, imports or assigns. Raises ConfigurationError."""
    names: set[str] = set()
    for node in ast.walk(parsed(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
            case _:
                pass
    return names
