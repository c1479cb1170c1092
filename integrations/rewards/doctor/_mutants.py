"""Mutants: wrong variants of a reference solution, each with one small change."""

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxkit.integrations.rewards._parse import parse

_SHOWN = 60
_SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Add,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.GtE, ast.LtE),
    ast.LtE: (ast.Gt, ast.Lt),
    ast.Gt: (ast.LtE, ast.GtE),
    ast.GtE: (ast.Lt, ast.Gt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Continue: (ast.Pass,),
    ast.Break: (ast.Pass,),
    ast.Raise: (ast.Pass,),
    ast.AugAssign: (ast.Pass,),
}
"""What a node of each type is replaced by, whatever it holds."""
_SKIPPED = ("annotation", "returns", "decorator_list", "type_params", "defaults", "kw_defaults")
_Place = tuple[int, str, int | None]
"""The position of a node: index of its parent in ast.walk, field name, and index if that is a list."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A variant of the reference. `change` is the first changed line, as "before  ->  after"."""

    change: str
    code: str


def mutants(reference: str, count: int, seed: int = 0) -> list[Mutant]:
    """Return up to `count` distinct mutants, chosen at random by `seed`.

    Raises SyntaxError if the reference does not parse.
    """
    tree = parse(reference)
    original = ast.unparse(tree)
    changes = list(_changes(tree))
    random.Random(seed).shuffle(changes)
    found: dict[str, Mutant] = {}
    for place, replacement in changes:
        if len(found) == count:
            break
        changed = ast.fix_missing_locations(_replaced(tree, place, replacement))
        code = ast.unparse(changed)
        if code != original:
            found.setdefault(code, Mutant(_difference(original, code), code))
    return list(found.values())


def _changes(tree: ast.Module) -> Iterator[tuple[_Place, ast.AST]]:
    inside = _inside(tree)
    for number, parent in enumerate(ast.walk(tree)):
        if id(parent) not in inside:
            continue
        for name, value in ast.iter_fields(parent):
            if name in _SKIPPED:
                continue
            if isinstance(value, ast.AST):
                yield from (((number, name, None), each) for each in _variants(value))
            elif isinstance(value, list):
                for place, node in enumerate(value):
                    if isinstance(node, ast.AST):
                        yield from (((number, name, place), each) for each in _variants(node))


def _inside(tree: ast.Module) -> set[int]:
    """Return the ids of the nodes to mutate: no imports, `__main__` block, f-strings or docstrings."""
    found: set[int] = set()
    for top in tree.body:
        match top:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                continue
            case ast.Import() | ast.ImportFrom():
                continue
            case _:
                found |= {id(node) for node in ast.walk(top)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr():
                found -= {id(each) for each in ast.walk(node)}
            case ast.Expr(value=ast.Constant()):
                found.discard(id(node))  # documentation
            case _:
                pass
    return found | {id(tree)}


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    for kind in _SWAPS.get(type(node), ()):
        yield kind()
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=str(value)) if value:
            yield ast.Constant("")
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), test)
            yield changed
        case ast.Call(func=ast.Name(id="range"), args=args) if args and len(args) < 3:
            for operator in (ast.Add(), ast.Sub()):
                end = ast.BinOp(args[-1], operator, ast.Constant(1))
                yield ast.Call(node.func, [*args[:-1], end], node.keywords)
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Yield()):
            yield ast.Pass()
        case _:
            pass


def _replaced(tree: ast.Module, place: _Place, replacement: ast.AST) -> ast.Module:
    changed = copy.deepcopy(tree)
    number, name, index = place
    parent = next(node for at, node in enumerate(ast.walk(changed)) if at == number)
    replacement = copy.deepcopy(replacement)
    if index is None:
        setattr(parent, name, replacement)
    else:
        getattr(parent, name)[index] = replacement
    return changed


def _difference(before: str, after: str) -> str:
    """Return the first line that differs, as "before -> after"."""
    old, new = before.splitlines(), after.splitlines()
    for number, line in enumerate(old):
        other = new[number] if number < len(new) else ""
        if line != other:
            return f"{_cut(line)}  ->  {_cut(other)}"
    return _cut(new[-1])


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
