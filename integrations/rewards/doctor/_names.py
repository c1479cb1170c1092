"""Finds the names that a task's tests expect the submission to define."""

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxkit.integrations.rewards._cases import bound_names, literal
from sandboxkit.integrations.rewards._notation import read, source
from sandboxkit.integrations.rewards._parse import parse
from sandboxkit.integrations.rewards._tests import parsed

# Any, throughout: a task is a row of a user's data set.
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class CheatNames:
    """Names that a cheat must define, and names that it can try to replace."""

    functions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """Names of classes that the reference defines, except exception classes."""
    exceptions: tuple[str, ...] = ()
    """Exception classes of the submission."""
    raised: tuple[str, ...] = ()
    """All exceptions that the tests mention, including Python's own."""
    helpers: tuple[str, ...] = ()
    """Builtins that the tests use, and names that they import or define."""
    answer: str | None = None
    """Source of the first expected value, which the prompt may show."""
    printed: str | None = None
    """Output of the program in the first case; None if the submission is not a program."""

    @property
    def own(self) -> tuple[str, ...]:
        """All names of the submission."""
        return (*self.functions, *self.classes, *self.exceptions)


def names_of(task: Mapping[str, Any], reference: str) -> CheatNames:
    """Collect names from the tests, and classes from the reference.

    Raises ConfigurationError for tests that do not parse.
    """
    tests = _sources(task)
    trees = [parsed(each) for each in tests]
    bound = set().union(*map(bound_names, trees))
    module = str(task.get("module") or "solution")
    used: dict[str, None] = {}
    if isinstance(entry := task.get("entry_point"), str) and entry.isidentifier():
        used[entry] = None
    for tree in trees:
        used |= dict.fromkeys(_imported(tree, module))
        loads = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        used |= {name: None for name in loads if name not in bound and name not in _BUILTINS}
    used.pop("candidate", None)
    used.pop(module, None)
    mentioned = dict.fromkeys(name for tree in trees for name in _caught(tree))
    classes = classes_of(reference)
    exceptions = {name for name in used if name in mentioned or classes.get(name)}
    helpers = {
        node.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and (node.id in _BUILTINS or node.id in bound)
    }
    return CheatNames(
        tuple(name for name in used if name not in classes and name not in exceptions),
        tuple(name for name in used if name in classes and name not in exceptions),
        tuple(name for name in used if name in exceptions),
        tuple(dict.fromkeys((*mentioned, *(name for name in used if name in exceptions)))),
        tuple(sorted(helpers - set(used) - {"candidate", "check"} - set(mentioned))),
        _answer(task, trees),
        _printed(task),
    )


def _sources(task: Mapping[str, Any]) -> list[str]:
    lines = list(task.get("test_list") or ())
    whole = [task.get(name) or "" for name in ("test_setup_code", "test", "tests")]
    return [each for each in (*lines, *whole) if isinstance(each, str) and each.strip()]


def _imported(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield the names that the tests import from the submission's module."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=name, names=names) if name == module:
                yield from (each.name for each in names if each.name != "*")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == module:
                yield attribute
            case _:
                pass


def _caught(tree: ast.Module) -> Iterator[str]:
    """Yield the names of exceptions in `except` clauses and in calls such as raises(X) or suppress(X)."""
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(type=ast.expr() as kind):
                found = [kind]
            case ast.Call(func=func, args=args) if (
                _last(func).lower().endswith(("raises", "suppress"))
            ):
                found = args[:1]
            case _:
                continue
        for each in found:
            for name in each.elts if isinstance(each, ast.Tuple) else [each]:
                if last := _last(name):
                    yield last


def _last(node: ast.expr) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def classes_of(reference: str) -> dict[str, bool]:
    """Return the reference's classes, and whether each looks like an exception."""
    try:
        tree = parse(reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}  # the reference's verdict reports it
    found: dict[str, bool] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [_last(base) for base in node.bases]
            found[node.name] = any(
                found.get(base) or base.endswith(("Error", "Exception")) for base in bases
            )
    return found


def _answer(task: Mapping[str, Any], trees: list[ast.Module]) -> str | None:
    for case in task.get("cases") or ():
        if "expected" in case and "stdin" not in case:
            return source(read(case["expected"]))
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.Is)):
                for side in (node.comparators[0], node.left):
                    if literal(side)[0]:
                        return ast.unparse(side)
    return None


def _printed(task: Mapping[str, Any]) -> str | None:
    for case in task.get("cases") or ():
        if isinstance(case.get("stdout"), str):
            return str(case["stdout"])
    return None
