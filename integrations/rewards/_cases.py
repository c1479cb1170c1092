"""Convert a task's tests to cases: an expression for the sandbox, and an expected value for the host."""

import ast
import builtins
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._in_sandbox.encode import encode
from sandboxkit.integrations.rewards._notation import read, source
from sandboxkit.integrations.rewards._task import checked, comparison_of, no_function
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
"""Builtins that may wrap the submission's call, because the host can still compare their result."""

PYTHON_EQUAL = Comparison(strict=False)


@dataclass(frozen=True, slots=True)
class FunctionCase:
    """An expression to evaluate with the submission's names; `expected` stays on the host."""

    source: str
    expected: Wire
    comparison: Comparison = PYTHON_EQUAL


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """Standard input for a program, and the output it must print."""

    stdin: str
    stdout: str
    comparison: Comparison = field(default=Comparison())


Case = FunctionCase | ProgramCase


def declared(task: Mapping[str, Any]) -> list[Case]:
    """Return the task's `cases`. Raises ConfigurationError for a malformed case."""
    own = checked(task)
    return [_declared(each, own, comparison_of(own, each)) for each in own.get("cases", ())]


def _declared(case: Any, task: Mapping[str, Any], comparison: Comparison) -> Case:
    match case:
        case {"stdin": str(stdin), "stdout": str(stdout)}:
            return ProgramCase(stdin, stdout, comparison)
        case {"expected": expected}:
            name = task.get("entry_point")
            if not isinstance(name, str) or not name.isidentifier():
                raise no_function(name)
            args = [source(read(each)) for each in case.get("args") or ()]
            kwargs = (case.get("kwargs") or {}).items()
            args += [f"{key}={source(read(value))}" for key, value in kwargs]
            return FunctionCase(f"{name}({', '.join(args)})", plain(read(expected)), comparison)
        case _:
            raise ConfigurationError(
                f"case {str(case)[:100]} has neither stdin and stdout nor args and expected"
            )


def plain(value: Any) -> Wire:
    """Encode an expected value for comparison. Raises ConfigurationError if it is not plain data."""
    wire = encode(value)
    if "opaque" in str(wire) and _has_opaque(wire):
        raise ConfigurationError(f"expected value {str(value)[:80]} is not plain data")
    return wire


def _has_opaque(wire: Any) -> bool:
    return isinstance(wire, list) and (wire[:1] == ["opaque"] or any(map(_has_opaque, wire)))


def from_assert(line: str, helpers: Set[str] = frozenset()) -> FunctionCase | None:
    """Convert a line such as `assert f(x) == y` to a case; return None for any other form of test.

    Only a call of the submission's function, bare or wrapped in a builtin such as sorted(), goes
    into the sandbox. The comparison stays on the host, because the sandbox could forge its result.
    `helpers` are names that the submission does not define. Raises ConfigurationError for a line
    that does not parse.
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
                known, value = literal(other)
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
            known, value = literal(other)
            options = {each.arg: literal(each.value) for each in test.keywords}
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


def literal(node: ast.expr) -> tuple[bool, Any]:
    """Return whether an expression is a literal, and its value."""
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError):
        return False, None


def _is_call(node: ast.expr, helpers: Set[str]) -> bool:
    """Whether `node` calls the submission, bare or wrapped in builtins that only convert the result."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if not hasattr(builtins, name):
                return name not in helpers
            rest = [*args, *(each.value for each in keywords)]
            if all(literal(each)[0] for each in rest):
                return True  # the submission may define a function with a builtin's name
            return (
                name in _WRAPPERS
                and bool(args)
                and _is_call(args[0], helpers)
                and all(literal(each)[0] for each in rest[1:])
            )
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id=name), args=[]))):
            return not hasattr(builtins, name) and name not in helpers  # Solution().solve(...)
        case ast.Subscript(value=value, slice=index):
            return _is_call(value, helpers) and literal(index)[0]
        case _:
            return False


def merged(cases: Sequence[Case]) -> list[Case]:
    """Merge all function cases with the same comparison into one case whose value is a list."""
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


def with_constants(line: str, constants: Mapping[str, ast.expr]) -> str:
    """Return a test line with each constant's name replaced by its value.

    Returns the line unchanged if it assigns one of the names itself.
    """

    class Inlined(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return constants.get(node.id, node)

    tree = parsed(line)
    if not constants or constants.keys() & bound_names(tree):
        return line
    return ast.unparse(Inlined().visit(tree))


@dataclass(frozen=True, slots=True)
class Setup:
    """The imports and constants of a task's setup: they may run in the submission's sandbox."""

    imports: str = ""
    constants: Mapping[str, ast.expr] = field(default_factory=dict)


def light(setup: str) -> Setup | None:
    """Parse a setup that has only imports and constants; return None for any other setup."""
    imports, constants = [], dict[str, ast.expr]()
    for node in parsed(setup).body:
        match node:
            case ast.Import() | ast.ImportFrom():
                imports.append(ast.unparse(node))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if literal(value)[0]:
                if name in constants:
                    return None
                constants[name] = value
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                return None
    return Setup("\n".join(imports), constants)


def bound_names(tree: ast.Module) -> set[str]:
    """Return the names that trusted code defines, imports or assigns, at any depth."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
            case _:
                pass
    return names
