"""Convert a task's tests to cases: an expression for the sandbox, and an expected value for the host.

In `cases` a JSON object with exactly one of these keys is a value of that type; any other object is a dict:

    {"__tuple__": [1, 2]}   {"__set__": [1, 2]}   {"__frozenset__": []}   {"__bytes__": "6162"}
    {"__dict__": [[1, "int keys"]]}   {"__float__": "nan"}   {"__complex__": [1, 2]}
    {"__decimal__": "1.10"}   {"__fraction__": [1, 3]}
"""

import ast
import builtins
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._in_sandbox.encode import encode
from sandboxkit.integrations.rewards._parse import literal, parsed
from sandboxkit.integrations.rewards._task import comparison_of, no_function
from sandboxkit.integrations.rewards._values import Comparison, Wire

_WRAPPERS = frozenset((
    "abs", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min", "reversed",
    "round", "set", "sorted", "str", "sum", "tuple",
))  # fmt: skip
"""Builtins that may wrap the submission's call, because the host can still compare their result."""

PYTHON_EQUAL = Comparison(strict=False)


@dataclass(frozen=True, slots=True)
class FunctionCase:
    """An expression to evaluate with the submission's names; `expected` stays on the host."""

    source: str
    expected: Wire
    comparison: Comparison = PYTHON_EQUAL
    others: tuple[Wire, ...] = ()
    """Other results that are right."""


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """Standard input for a program, and the output it must print."""

    stdin: str
    stdout: str
    comparison: Comparison = field(default=Comparison())


Case = FunctionCase | ProgramCase


def declared(task: Mapping[str, Any]) -> list[Case]:
    """Return the task's `cases`. Raises ConfigurationError for a malformed case."""
    return [_declared(each, task, comparison_of(task, each)) for each in task.get("cases", ())]


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
            others = tuple(plain(read(each)) for each in case.get("also") or ())
            call = f"{name}({', '.join(args)})"
            return FunctionCase(call, plain(read(expected)), comparison, others)
        case _:
            raise ConfigurationError(
                f"case {str(case)[:100]} has neither stdin and stdout nor args and expected"
            )


def plain(value: Any) -> Wire:
    """Encode an expected value for comparison. Raises ConfigurationError if it is not plain data."""

    def refuse(*_: object) -> Wire:
        raise ConfigurationError(f"expected value {str(value)[:80]} is not plain data")

    return encode(value, refuse)


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


def from_check(source: str, entry: str) -> list[FunctionCase] | None:
    """Convert check(candidate) whose statements all compare a call with a literal; return None for any other."""
    functions = [node for node in parsed(source).body if isinstance(node, ast.FunctionDef)]
    if [each.name for each in functions] != ["check"] or len(functions[0].args.args) != 1:
        return None
    candidate, cases = functions[0].args.args[0].arg, []
    for node in functions[0].body:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Assert(test=ast.Constant(value=True)):
                continue  # HumanEval has `assert True, "..."`
            case ast.Assert():
                pass
            case _:
                return None
        for each in ast.walk(node.test):
            if isinstance(each, ast.Name) and each.id == candidate:
                each.id = entry
        case = _from_test(node.test, frozenset())
        names = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        if case is None or names - {entry, *_WRAPPERS}:
            return None
        cases.append(case)
    return cases or None


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
        case _ if _is_call(test, helpers):
            return FunctionCase(f"bool({ast.unparse(test)})", plain(True))
    return None


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


def imported(setup: str) -> set[str] | None:
    """Return the names that a task's setup imports; None if it does more, which must not run beside the submission."""
    body = parsed(setup).body
    if not all(isinstance(node, ast.Import | ast.ImportFrom) for node in body):
        return None
    aliases = [node for each in body for node in ast.walk(each) if isinstance(node, ast.alias)]
    return {each.asname or each.name.partition(".")[0] for each in aliases}


# Any: values of every type.
_READERS: dict[str, Callable[[Any], Any]] = {
    "__tuple__": lambda items: tuple(read(items)),
    "__set__": lambda items: set(read(items)),
    "__frozenset__": lambda items: frozenset(read(items)),
    "__bytes__": bytes.fromhex,
    "__dict__": lambda pairs: {read(key): read(value) for key, value in pairs},
    "__float__": float,
    "__complex__": lambda parts: complex(*parts),
    "__decimal__": Decimal,
    "__fraction__": lambda parts: Fraction(*parts),
}


def read(value: Any) -> Any:
    """Decode a JSON value of a case. Raises ConfigurationError for invalid content."""
    if isinstance(value, dict):
        if len(value) == 1:
            name, content = next(iter(value.items()))
            if name in _READERS:
                try:
                    return _READERS[name](content)
                except (TypeError, ValueError, ArithmeticError, InvalidOperation) as error:
                    raise ConfigurationError(
                        f"case value {str(value)[:80]} is no {name.strip('_')}: {error}"
                    ) from error
        return {key: read(each) for key, each in value.items()}
    if isinstance(value, list):
        return [read(each) for each in value]
    return value


_DECIMAL_BITS = 10_000
"""The size of the largest number that is written with decimal digits, of which Python reads 4,300."""


def source(value: Any) -> str:
    """Return Python source for plain data. Raises ConfigurationError for any other value."""
    kind = type(value)
    if kind is int and value.bit_length() > _DECIMAL_BITS:
        return hex(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value!r}")'
    if kind is complex:
        return f"complex({source(value.real)}, {source(value.imag)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{source(k)}: {source(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(source, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{source(each)}, ' for each in value)})"
    if isinstance(value, (set, frozenset)):
        items = f"[{', '.join(map(source, value))}]"
        return f"frozenset({items})" if isinstance(value, frozenset) else f"set({items})"
    if kind is Decimal:
        return f'__import__("decimal").Decimal("{value}")'
    if kind is Fraction:
        return f'__import__("fractions").Fraction({source(value.numerator)}, {source(value.denominator)})'
    raise ConfigurationError(f"argument {str(value)[:80]} is not plain data")
