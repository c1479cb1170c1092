"""A task's tests: their sources, how they use the submission, and so where they can run."""

import ast
import builtins
import dataclasses
import importlib
import os
import re
import symtable
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.datasets import Folder
from sandboxkit.integrations.rewards._level import ALL, level, level_of_judge
from sandboxkit.integrations.rewards._parse import UNPARSABLE, parse_or_none, parsed
from sandboxkit.integrations.rewards._task import no_function

_KNOWN = frozenset((*dir(builtins), "__name__", "__file__", "__annotations__"))


@dataclass(frozen=True, slots=True)
class Tests:
    """Sources that run one after another in one namespace, and then the tests."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    """Each the source of a test, or a name that the sources define, such as `test_add` or `Cases.test_add`."""
    module: str = "solution"
    """The name under which the tests may import the submission."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """Functions of the submission by the names that the tests have for them."""
    in_place: Mapping[str, Sequence[int | str] | bool] = field(default_factory=dict)
    """The arguments of functions of the submission whose changes the tests see; True for all."""
    shared: str = ""
    """Why the tests must run in the submission's process; empty if they need not."""

    def apart(self) -> "list[Tests]":
        """Split the tests: return one `Tests` per test."""
        return [dataclasses.replace(self, tests=(each,)) for each in self.tests]

    def job(self) -> dict[str, Any]:  # Any: JSON
        """Return the job for the judge's program."""
        names = ("sources", "tests", "module", "functions", "in_place")
        return {name: getattr(self, name) for name in names}


# Any: a row of a user's data set.
def tests_of(task: Mapping[str, Any], lines: Sequence[str]) -> list[Tests]:
    """Return a task's tests for a judge: its `test`, its `tests`, and `lines` of its `test_list`.

    Raises ConfigurationError for a source that does not parse or contains no test.
    """
    entry, setup = task.get("entry_point", ""), str(task.get("test_setup_code", ""))
    found = []
    if lines:
        found.append(Tests((setup,), tuple(lines)))
    if "test" in task:
        if not isinstance(entry, str) or not entry.isidentifier():
            raise no_function(entry)
        source = str(task["test"])
        if "check" not in {getattr(node, "name", "") for node in parsed(source).body}:
            raise ConfigurationError("the task's test does not define check(candidate)")
        context = "\n".join(definitions(task.get("prompt"), entry))
        found.append(Tests((context, setup, source), (f"check({entry})",)))
    if "tests" in task:
        source = str(task["tests"])
        found.append(Tests((setup, source), _named(source)))
    return [_placed(each, task) for each in found]


def _placed(tests: Tests, task: Mapping[str, Any]) -> Tests:
    """Decide where tests run, from what they do with the submission. Raises ConfigurationError."""
    sources = [each for each in (*tests.sources, *tests.tests) if not _is_name(each)]
    for source in sources:
        _compile(source)
    module, entry = str(task.get("module", "solution")), str(task.get("entry_point", ""))
    unknown, modules = undefined("\n".join(sources))
    imports = [f"import {each}" for each in sorted(modules)]
    found = level([*imports, *sources], frozenset(unknown), module, entry)
    listed = task.get("in_place", False)
    whole = found.functions.values() if listed is True else listed or ()
    return dataclasses.replace(
        tests,
        sources=("\n".join(imports), *tests.sources),
        module=module,
        functions=dict(found.functions),
        in_place={
            name: ALL in places or sorted(places, key=str)
            for name, places in found.in_place.items()
        }
        | dict.fromkeys(whole, True),
        shared="the task says that calls share state" if task.get("stateful") else found.shared,
    )


def _compile(source: str) -> None:
    """Raise ConfigurationError for what parses and does not compile, such as a `return` outside of a function."""
    parsed(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a comparison by `is` with a literal
            compile(source.strip(), "test", "exec", dont_inherit=True)
    except UNPARSABLE as error:
        raise ConfigurationError(f"test {source[:80]!r} does not compile: {error}") from error


_FUTURE = re.compile(r"(?m)^from __future__ import .*")


def _is_name(test: str) -> bool:
    return all(each.isidentifier() for each in test.split("."))


def undefined(source: str) -> tuple[set[str], set[str]]:
    """Return the global names that `source` reads and does not define: those of the submission, and modules.

    A name of the standard library's modules that is not called is that module.
    """
    made, read = set[str](), set[str]()
    # It would have to come first, but here sources are joined.
    source = _FUTURE.sub("pass", source)
    tree = parsed(source)
    try:
        waiting = [symtable.symtable(source.strip(), "test", "exec")]
    except (SyntaxError, RecursionError) as error:
        raise ConfigurationError(f"test {source[:80]!r} does not compile: {error}") from error
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            is_made = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            if is_made and (top or symbol.is_declared_global()):
                made.add(symbol.get_name())
            if symbol.is_referenced() and (top or symbol.is_global()):
                read.add(symbol.get_name())
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    unknown = read - made - _KNOWN - _starred(source)
    modules = unknown & (sys.stdlib_module_names - called)
    return unknown - modules, modules


def _starred(source: str) -> set[str]:
    """Return the names that `from module import *` brings from modules of the standard library."""
    found = set[str]()
    for node in ast.walk(parsed(source)):
        match node:
            case ast.ImportFrom(module=str(name), names=[ast.alias(name="*")]) if (
                name.partition(".")[0] in sys.stdlib_module_names
            ):
                module = importlib.import_module(name)
                found.update(getattr(module, "__all__", None) or vars(module))
    return found


def load_tests(folder: Path) -> Tests:
    """Load the tests of a folder with a judge.py. Raises ConfigurationError if they are unusable."""
    files = Folder(folder, "the folder of tests")
    source = files.text("judge.py")
    if source is None:
        raise ConfigurationError(f"there is no {folder / 'judge.py'}")
    names = [os.fsdecode(each.name) for each in files.entries() if each.name.endswith(b".py")]
    levels = (level_of_judge(files.text(name, errors="replace") or "") for name in names)
    return Tests((source,), _named(source), shared=next(filter(None, levels), ""))


def _named(source: str) -> tuple[str, ...]:
    """Return the names of a module's tests: functions, and methods of its classes, in their order."""
    body, found = parsed(source).body, list[str]()
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    functions = [node for node in ast.walk(parsed(source)) if isinstance(node, _FUNCTIONS)]
    decorators = [each for node in functions for each in node.decorator_list]
    if any("fixture" in ast.unparse(each) for each in decorators):
        raise ConfigurationError(
            "the tests have fixtures, which need pytest: write setup_method() or plain functions"
        )
    for node in body:
        if isinstance(node, ast.ClassDef):
            found += _of_class(node, "", classes)
        elif isinstance(node, _FUNCTIONS) and node.name.startswith("test"):
            _refuse_arguments(node, 0)
            if node.decorator_list:
                raise ConfigurationError(
                    f"test {node.name!r} has decorators; only plain functions can be run"
                )
            found.append(node.name)
    if not found:
        raise ConfigurationError("the tests have no function whose name starts with 'test'")
    return tuple(found)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Classes = Mapping[str, ast.ClassDef]


def _of_class(node: ast.ClassDef, outside: str, classes: _Classes) -> list[str]:
    """Return the names of the tests of a class, of its bases, and of the classes inside of it."""
    line = list(_line(node, classes))
    bases = [ast.unparse(base) for each in line for base in each.bases]
    case = any(base.endswith("TestCase") for base in bases)
    if not case and not node.name.startswith("Test"):
        return []
    found, where = dict[str, None](), f"{outside}{node.name}."
    for each in [part for kind in reversed(line) for part in kind.body]:
        if isinstance(each, _FUNCTIONS) and each.name.startswith("test"):
            _refuse_arguments(each, 1)
            found[f"{where}{each.name}"] = None
        elif isinstance(each, ast.ClassDef) and not case:
            found.update(dict.fromkeys(_of_class(each, where, classes)))
    return list(found)


def _line(node: ast.ClassDef, classes: _Classes) -> Iterator[ast.ClassDef]:
    """Yield a class and those of its base classes that the tests define."""
    yield node
    for base in node.bases:
        if isinstance(base, ast.Name) and classes.get(base.id, node) is not node:
            yield from _line(classes[base.id], {k: v for k, v in classes.items() if v is not node})


def _refuse_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef, own: int) -> None:
    if len(node.args.args) - len(node.args.defaults) > own:
        raise ConfigurationError(
            f"test {node.name!r} has arguments; only functions without, and methods, can be run"
        )


# Any: a prompt may be text or messages.
def definitions(prompt: Any, entry_point: str) -> list[str]:
    """Return the imports and definitions, but `entry_point`, of a prompt that is code, as in HumanEval."""
    if not isinstance(prompt, str):
        return []
    module = parse_or_none(prompt) or parse_or_none(f"{prompt.rstrip()}\n    pass\n")
    if module is None:
        return []
    return [
        ast.unparse(node)
        for node in module.body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign))
        and getattr(node, "name", "") != entry_point
    ]
