"""Parse Python source in a process that has other threads."""

import ast

_ATTEMPTS = 50


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
