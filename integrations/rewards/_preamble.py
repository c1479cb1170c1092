"""Puts a task's preamble, imports that its data set's grader provides, before a submission in Python."""

import ast
import re

from sandboxkit.integrations.rewards._parse import parse_or_none, parsed


def statements(preamble: str, code: str) -> list[str]:
    """Return the statements that come before `code`.

    `import numpy as np` is left out if the code does not have the word np, and may fail: it takes long, and an image
    may lack it. So is any other import under another name.
    """
    found = []
    for node in parsed(preamble).body:
        source, name = ast.unparse(node), isinstance(node, ast.Import) and node.names[0].asname
        if not name:
            found.append(source)
        elif re.search(rf"\b{name}\b", code):
            found.append(f"try:\n    {source}\nexcept ImportError:\n    pass")
    return found


def with_preamble(preamble: str, code: str) -> str:
    """Return a program with its preamble, which follows imports from `__future__`."""
    if not preamble:
        return code
    code = code.removeprefix("\ufeff")
    tree = parse_or_none(code)
    ends = [
        node.end_lineno or 0
        for node in (tree.body if tree else ())
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    lines = code.split("\n")
    at = max(ends, default=0)
    return "\n".join([*lines[:at], *statements(preamble, code), *lines[at:]])
