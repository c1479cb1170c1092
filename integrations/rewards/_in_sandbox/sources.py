"""Compile tests so that calls whose result is discarded can be recognized. Runs in the judge's sandbox.

A statement that consists of a call, such as `sort(items)`, exists for its side effects. Outside
`try` and `with`, the arguments are updated after such a call.
"""

from __future__ import annotations

import ast
import builtins
import types
from typing import Any  # Any: nodes of every kind

CALL = "__call_discarding_result__"
"""The name of the function that replaces such a call: `sort(items)` becomes `CALL(sort, items)`."""


def compiled(source: str, name: str) -> types.CodeType:
    """Compile a module of tests whose file name is `name`."""
    tree = _Discarding().visit(ast.parse(source.strip(), name))
    return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)


class _Discarding(ast.NodeTransformer):
    """Replaces calls that are statements, except in `try` and `with`, by calls through `CALL`."""

    def __init__(self) -> None:
        self._guarded = 0

    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value
        if self._guarded or not isinstance(call, ast.Call):
            return self.generic_visit(node)
        if isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id):
            return self.generic_visit(node)
        marked = ast.Call(
            ast.copy_location(ast.Name(CALL, ast.Load()), call.func),
            [call.func, *call.args],
            call.keywords,
        )
        self.generic_visit(marked)
        node.value = ast.copy_location(marked, call)
        return node

    def _guard(self, node: Any) -> Any:
        self._guarded += 1
        self.generic_visit(node)
        self._guarded -= 1
        return node

    visit_Try = visit_With = visit_AsyncWith = _guard

    def _free(self, node: Any) -> Any:
        guarded, self._guarded = self._guarded, 0
        self.generic_visit(node)
        self._guarded = guarded
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _free
