"""Parse Python source in a process that has other threads."""

import ast
from typing import Any

from sandboxkit import ConfigurationError

_ATTEMPTS = 50
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The errors that `parse` raises for source that is no Python."""


def parse(source: str) -> ast.Module:
    """Return the syntax tree of `source`. Raises what `ast.parse` raises for it.

    In CPython 3.11 up to 3.11.7 the threads of a process share a counter of the parser, so two threads that
    parse at the same time may get a SystemError (gh-106905). It does not come from the source, so the source is
    parsed again.
    """
    for _ in range(_ATTEMPTS):
        try:
            return ast.parse(source)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return ast.parse(source)


def parsed(source: str) -> ast.Module:
    """Parse trusted source. Raises ConfigurationError for a syntax error."""
    try:
        return parse(source.strip())
    except UNPARSABLE as error:
        raise ConfigurationError(f"test {source[:80]!r} does not parse: {error}") from error


def parse_or_none(source: str) -> ast.Module | None:
    """Return the syntax tree of `source`, or None if it does not parse."""
    try:
        return parse(source)
    except UNPARSABLE:
        return None


def literal(node: ast.expr) -> tuple[bool, Any]:  # Any: values of every type
    """Return whether an expression is a literal, and its value."""
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return False, None
