"""Compile tests so that a submission cannot easily evade their assertions. Runs in a sandbox."""

from __future__ import annotations

import ast
import types

_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}


def compiled(source: str, file: str, module: str, kind: str = "exec") -> types.CodeType:
    """Compile tests of the submission, which they import as `module`; `file` is their file name.

    A failed assertion fails the test even if an `except` clause catches it, unless the clause names
    AssertionError. Comparisons and `with` blocks go through `ComparisonGuard`. `from solution import *`
    imports nothing: the tests get the names that they use and do not define.
    """
    tree = ast.parse(source.strip(), file, kind)
    return compile(
        ast.fix_missing_locations(_Change(module).visit(tree)), file, kind, dont_inherit=True
    )


class _Change(ast.NodeTransformer):
    def __init__(self, module: str) -> None:
        self._module = module
        self._expected = 0

    def visit_Try(self, node: ast.Try) -> ast.AST:
        expects = any(
            isinstance(each, ast.Name) and each.id == "AssertionError"
            for handler in node.handlers
            if handler.type is not None
            for each in ast.walk(handler.type)
        )
        self._expected += expects
        node.body = [self.visit(each) for each in node.body]
        self._expected -= expects
        for rest in (node.handlers, node.orelse, node.finalbody):
            rest[:] = [self.visit(each) for each in rest]
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        if self._expected:
            return node
        call = ast.Call(_name("__failed__"), [node.msg] if node.msg else [], [])
        fails = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Expr(call)], [])
        return ast.copy_location(fails, node)

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        for each in node.items:
            each.context_expr = ast.Call(_name("__entered__"), [each.context_expr], [])
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        names = [_OPERATORS.get(type(each)) for each in node.ops]
        if None in names:  # `is` calls no method of the submission
            return node
        operators = ast.Tuple([ast.Constant(each, None) for each in names], ast.Load())
        call = ast.Call(_name("__compared__"), [operators, node.left, *node.comparators], [])
        return ast.copy_location(call, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        star = node.module == self._module and node.names[0].name == "*"
        return ast.copy_location(ast.Pass(), node) if star else node


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())
