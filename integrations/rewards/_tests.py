"""Trusted tests for a judge: their sources, and the names that they take from the submission."""

import ast
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.datasets import Folder
from sandboxkit.integrations.rewards._names import bound, classes_of, of_submission, undefined
from sandboxkit.integrations.rewards._parse import parse
from sandboxkit.integrations.rewards._task import no_function


@dataclass(frozen=True, slots=True)
class Tests:
    """Sources that run one after another in one namespace."""

    sources: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """Expressions to evaluate after the sources. If there are any, they are the tests."""
    setup: str = ""
    names: tuple[str, ...] = ()
    """Names that the tests take from the submission."""
    classes: tuple[str, ...] = ()
    """Names of the submission's classes whose objects stay live in the tests."""
    in_place: bool | tuple[str, ...] = False
    """Functions whose changes to their arguments the tests see; True for every function."""
    varies: bool | tuple[str, ...] = False
    """Functions whose results for equal calls may differ; True for every function."""
    module: str = "solution"
    """The name under which the tests may import the submission."""
    operators: tuple[str, ...] = ()
    """Classes of the submission whose operators are trusted even with plain data as the other operand."""
    folder: bool = False
    """Whether the judge's working directory holds files of the tests."""
    seen: Any = None  # JSON
    """The names that the tests use and define, as the job for their process has them; None: not looked for yet."""

    def apart(self) -> "list[Tests]":
        """Split the tests: return one `Tests` per test."""
        if self.calls:
            return [dataclasses.replace(self, calls=(call,)) for call in self.calls]
        return [dataclasses.replace(self, sources=(source,)) for source in self.sources]

    @property
    def count(self) -> int:
        """Number of tests."""
        return len(self.calls) or len(self.sources)

    def job(self) -> dict[str, Any]:  # Any: JSON
        """Return the job for the judge's program."""
        return {
            "setup": self.setup,
            "tests": self.sources,
            "call": self.calls,
            "names": self.names,
            **(self.seen or names_for_judge(self)),
            "live": self.classes,
            "in_place": self.in_place,
            "varies": self.varies,
            "module": self.module,
            "operators": self.operators,
            "folder": self.folder,
        }


def names_for_judge(tests: Tests) -> dict[str, list[str]]:
    """Return the modules that the tests use, and the names that they define."""
    whole = "\n".join((tests.setup, *tests.sources))
    modules = undefined(whole) & set(sys.stdlib_module_names) - set(tests.names)
    return {"modules": sorted(modules), "own": sorted(bound(whole))}


# Any: a row of a user's data set.
def tests_of(task: Mapping[str, Any], lines: Sequence[str]) -> list[Tests]:
    """Return a task's tests for a judge: its `test`, its `tests`, and `lines` of its `test_list`.

    Raises ConfigurationError for a source that does not parse or contains no test.
    """
    entry = task.get("entry_point", "")
    whole = Tests(
        (),
        setup=str(task.get("test_setup_code", "")),
        in_place=_functions_of(task, "in_place"),
        varies=_functions_of(task, "varies"),
        module=str(task.get("module", "solution")),
        operators=tuple(map(str, task.get("operators", ()))),
    )
    found = []
    every = tuple(map(str, task.get("test_list", ())))
    if every:
        checked = _named(task, dataclasses.replace(whole, sources=every), lines=True)
        found += [dataclasses.replace(checked, sources=tuple(lines))] if lines else []
    if "test" in task:
        if not isinstance(entry, str) or not entry.isidentifier():
            raise no_function(entry)
        context = f"{_context(task.get('prompt'), entry)}\n{whole.setup}"
        if "check" not in {getattr(node, "name", "") for node in parsed(str(task["test"])).body}:
            raise ConfigurationError("the task's test does not define check(candidate)")
        check = dataclasses.replace(whole, sources=(str(task["test"]),), setup=context)
        check = dataclasses.replace(check, calls=(f"check({entry})",))
        found.append(_named(task, check, lines=False))
    if "tests" in task:
        source = str(task["tests"])
        calls = _functions(source)
        module = dataclasses.replace(whole, sources=(source,), calls=calls)
        found.append(_named(task, module, lines=False))
    return found


def _named(task: Mapping[str, Any], tests: Tests, *, lines: bool) -> Tests:
    """Fill in the names and classes of the submission. Raises ConfigurationError."""
    for source in (tests.setup, *tests.sources):
        parsed(source)
    names = of_submission(task, tests.setup, tests.sources, lines=lines, module=tests.module)
    classes = classes_of(task, (tests.setup, *tests.sources))
    return dataclasses.replace(tests, names=names, classes=classes)


def _functions_of(task: Mapping[str, Any], key: str) -> bool | tuple[str, ...]:
    """Return the functions that a key of the task lists; True for every function."""
    value = task.get(key, False)
    return value if isinstance(value, bool) else tuple(map(str, value))


def load_tests(folder: Path) -> Tests:
    """Load the tests of a folder with a judge.py. Raises ConfigurationError if they are unusable."""
    source = Folder(folder, "the folder of tests").text("judge.py")
    if source is None:
        raise ConfigurationError(f"there is no {folder / 'judge.py'}")
    return _named({}, Tests((source,), _functions(source), folder=True), lines=False)


def parsed(source: str) -> ast.Module:
    """Parse trusted source. Raises ConfigurationError for a syntax error."""
    try:
        return parse(source.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(f"test {source[:80]!r} does not parse: {error}") from error


def _functions(source: str) -> tuple[str, ...]:
    """Return a call of each test function of a module, in their order."""
    calls = []
    for node in parsed(source).body:
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test"):
                arguments = node.args
                required = len(arguments.args) - len(arguments.defaults)
                if required or node.decorator_list:
                    raise ConfigurationError(
                        f"test {name!r} has arguments or decorators; only plain functions can be run"
                    )
                calls.append(f"{name}()")
            case ast.ClassDef(name=name) if name.startswith("Test"):
                raise ConfigurationError(f"test class {name!r}: only plain functions can be run")
            case _:
                pass
    if not calls:
        raise ConfigurationError("the tests have no function whose name starts with 'test'")
    return tuple(calls)


# Any: a prompt may be text or messages.
def _context(prompt: Any, entry_point: str) -> str:
    """Return all definitions but `entry_point` in a prompt that is code, as in HumanEval.

    Returns "" for a prompt that is not code.
    """
    if not isinstance(prompt, str):
        return ""
    module = _parsed_prompt(prompt) or _parsed_prompt(f"{prompt.rstrip()}\n    pass\n")
    if module is None:
        return ""
    module.body = [
        node
        for node in module.body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign))
        and getattr(node, "name", "") != entry_point
    ]
    return ast.unparse(module)


def _parsed_prompt(source: str) -> ast.Module | None:
    try:
        return parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
