"""MBPP problems as programs: each reference solution, and a variant of it that must fail."""

import ast
import json
import warnings
from dataclasses import dataclass
from importlib import resources

HANG_EVERY = 33
"""Every 33rd broken variant never ends, the others return something wrong."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program with its tests, which exits with 0 if they pass."""

    task_id: int
    broken: bool
    source: str


def programs(limit: int | None = None) -> list[Program]:
    """The reference and the broken program of the first `limit` problems, side by side."""
    text = resources.files("sandboxkit.cli").joinpath("mbpp_100.jsonl").read_text("utf-8")
    result: list[Program] = []
    for line in text.splitlines()[:limit]:
        problem = json.loads(line)
        task_id, code, tests = problem["task_id"], problem["code"], "\n".join(problem["test_list"])
        wrong = _broken(code, tests, hang=task_id % HANG_EVERY == 0)
        result.append(Program(task_id, False, f"{code}\n\n{tests}\n"))
        result.append(Program(task_id, True, f"{wrong}\n\n{tests}\n"))
    return result


def _broken(code: str, tests: str, *, hang: bool) -> str:
    """Break the function that the tests call: wrong results, or none ever.

    A fresh object equals nothing that a test compares it with, so no test can pass by luck.
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
        return node  # an inner function's results are not what is tested
