"""MBPP problems as programs: each reference solution, and a broken variant that must fail."""

import ast
import itertools
import warnings
from dataclasses import dataclass
from importlib import resources

from sandboxkit.json_lines import json_lines

HANG_EVERY = 33
"""Every 33rd broken variant never ends; the others return a wrong result."""


@dataclass(frozen=True, slots=True)
class MbppProgram:
    """A program with its tests; it exits with 0 if the tests pass."""

    task_id: int
    broken: bool
    source: str


def programs(limit: int | None = None) -> list[MbppProgram]:
    """Return the reference and the broken program of the first `limit` problems, in pairs."""
    with resources.files("sandboxkit.cli").joinpath("mbpp_100.jsonl").open("rb") as file:
        problems = [problem for _, problem in itertools.islice(json_lines(file, "MBPP"), limit)]
    result: list[MbppProgram] = []
    for problem in problems:
        task_id, code, tests = problem["task_id"], problem["code"], "\n".join(problem["test_list"])
        wrong = _broken(code, tests, hang=task_id % HANG_EVERY == 0)
        result.append(MbppProgram(task_id, False, f"{code}\n\n{tests}\n"))
        result.append(MbppProgram(task_id, True, f"{wrong}\n\n{tests}\n"))
    return result


def _broken(code: str, tests: str, *, hang: bool) -> str:
    """Break the function that the tests call: it returns a wrong result, or never returns.

    The wrong result is a fresh object, which equals no expected value, so no test passes by luck.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few problems have plain strings such as '\\w'
        tree = ast.parse(code)
    called = {
        node.func.id
        for node in ast.walk(ast.parse(tests))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in called:
            if hang:
                node.body = ast.parse("import time\nwhile True:\n    time.sleep(1)").body
            else:
                node.body = [_WrongResults().visit(statement) for statement in node.body]
    return ast.unparse(ast.fix_missing_locations(tree))


class _WrongResults(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> ast.Return:
        return ast.Return(ast.parse("object()", mode="eval").body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node  # the tests do not check an inner function's results
