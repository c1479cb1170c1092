"""Source is parsed in processes whose other threads parse as well."""

import ast

import pytest

from sandboxkit.integrations.rewards._parse import parse

# CPython raises this about once in a thousand times when three threads parse at once.
MISMATCH = SystemError("AST constructor recursion depth mismatch (before=138, after=185)")


def test_a_collision_with_another_thread_is_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [MISMATCH, MISMATCH]
    of_cpython = ast.parse

    def parsing(source: str) -> ast.Module:
        if errors:
            raise errors.pop()
        return of_cpython(source)

    monkeypatch.setattr(ast, "parse", parsing)
    assert ast.unparse(parse("x = 1")) == "x = 1"
    assert errors == []


def test_an_error_of_the_source_is_raised() -> None:
    with pytest.raises(SyntaxError):
        parse("x =")
