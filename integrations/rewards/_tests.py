"""Trusted tests as a judge runs them: their sources, and how they find the submission."""

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError


@dataclass(frozen=True, slots=True)
class Tests:
    """Sources that run one after another in one namespace; names not defined there are the
    submission's."""

    sources: tuple[str, ...]
    calls: tuple[str, ...] = ()
    """Expressions that are evaluated after the sources; then these are the tests."""
    setup: str = ""
    entry_point: str = ""
    """A name that is the submission's even where it is a builtin's, too."""
    module: str = "solution"
    """The name under which the tests may import the submission."""
    operators: tuple[str, ...] = ()
    """Classes of the submission whose operators are believed also with plain data beside them."""
    folder: bool = False
    """Whether files of the tests lie in the judge's working directory."""

    def apart(self) -> "list[Tests]":
        """Each test as the only one."""
        if self.calls:
            return [dataclasses.replace(self, calls=(call,)) for call in self.calls]
        return [dataclasses.replace(self, sources=(source,)) for source in self.sources]

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.calls) or len(self.sources)

    def job(self) -> dict[str, Any]:  # Any: JSON
        """What the judge's program is told."""
        return {
            "setup": self.setup,
            "tests": self.sources,
            "call": self.calls,
            "entry_point": self.entry_point,
            "module": self.module,
            "operators": self.operators,
            "folder": self.folder,
        }


# Any: a row of somebody's data set.
def tests_of(task: Mapping[str, Any], lines: Sequence[str]) -> list[Tests]:
    """What of a task is a judge's: its `test` or `tests`, and these lines of its `test_list`.

    Raises ConfigurationError for what does not parse or tests nothing.
    """
    entry = task.get("entry_point", "")
    whole = Tests(
        (),
        setup=str(task.get("test_setup_code", "")),
        entry_point=str(entry),
        module=str(task.get("module", "solution")),
        operators=tuple(map(str, task.get("operators", ()))),
    )
    found = []
    if lines:
        found.append(dataclasses.replace(whole, sources=tuple(lines)))
    if "test" in task:
        if not isinstance(entry, str) or not entry.isidentifier():
            raise ConfigurationError(f"the task's entry_point={entry!r} is not a function's name")
        context = f"{_context(task.get('prompt'), entry)}\n{whole.setup}"
        if "check" not in {getattr(node, "name", "") for node in parsed(str(task["test"])).body}:
            raise ConfigurationError("the task's test does not define check(candidate)")
        check = dataclasses.replace(whole, sources=(str(task["test"]),), setup=context)
        found.append(dataclasses.replace(check, calls=(f"check({entry})",)))
    if "tests" in task:
        source = str(task["tests"])
        calls = _functions(source)
        found.append(dataclasses.replace(whole, sources=(source,), calls=calls))
    for each in found:
        _refuse_broken(each)
    return found


def load_tests(folder: Path) -> Tests:
    """The tests of a folder with a judge.py. Raises ConfigurationError."""
    source = (folder / "judge.py").read_text("utf-8")
    tests = Tests((source,), _functions(source), folder=True)
    _refuse_broken(tests)
    return tests


def _refuse_broken(tests: Tests) -> None:
    for source in (tests.setup, *tests.sources):
        parsed(source)


def parsed(source: str) -> ast.Module:
    """Trusted source as a tree. Raises ConfigurationError."""
    try:
        return ast.parse(source.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(f"test {source[:80]!r} does not parse: {error}") from error


def _functions(source: str) -> tuple[str, ...]:
    """Calls of a module's test functions, in their order."""
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
    """What a prompt that is code defines beside the function it asks for, as in HumanEval."""
    if not isinstance(prompt, str):
        return ""
    try:
        module = ast.parse(prompt)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    module.body = [
        node
        for node in module.body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign))
        and getattr(node, "name", "") != entry_point
    ]
    return ast.unparse(module)
