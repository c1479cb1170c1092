"""The names that tests with trust `"shared"` take from the submission and from libraries."""

import ast
import builtins
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sandboxkit.integrations.rewards._cases import bound_names
from sandboxkit.integrations.rewards._tests import Tests, parsed


@dataclass(frozen=True, slots=True)
class TestNames:
    """Names found in the sources of tests."""

    names: tuple[str, ...]
    """Names that the tests use without defining them: the submission's names, or modules."""
    used: tuple[str, ...]
    """Every name, attribute and imported name in the tests."""
    imports: tuple[str, ...]
    """Modules to import before the submission is loaded."""


def names_in_tests(tests: Tests) -> TestNames:
    """Return the names that the tests use. Raises ConfigurationError for tests that do not parse."""
    trees = [parsed(source) for source in (tests.setup, *tests.sources)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    loaded = {each.id for each in nodes if isinstance(each, ast.Name)}
    bound = {name for tree in trees for name in bound_names(ast.unparse(tree))}
    bound |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    names = (loaded - bound - set(dir(builtins))) | set(tests.names)
    aliases = {each.name for each in nodes if isinstance(each, ast.alias)}
    attributes = {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    return TestNames(
        tuple(sorted(names)),
        tuple(sorted(loaded | aliases | attributes)),
        tuple(_modules(nodes, names, tests.module)),
    )


def _modules(nodes: Sequence[ast.AST], names: set[str], submission: str) -> list[str]:
    found = names & sys.stdlib_module_names
    for node in nodes:
        match node:
            case ast.Import(names=aliases):
                found |= {each.name for each in aliases}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module)
            case ast.Call(
                func=ast.Attribute(attr="patch"), args=[ast.Constant(value=str(target)), *_]
            ):
                found |= {target.partition(".")[0]} & sys.stdlib_module_names
            case _:
                pass
    return sorted(each for each in found if each.partition(".")[0] != submission)
