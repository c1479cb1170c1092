"""Which forbidden names a submission uses, by its syntax tree and not by its text."""

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandboxkit import ConfigurationError

DYNAMIC = ("eval", "exec", "compile", "__import__", "__builtins__", "builtins", "importlib")
"""Ways to a name that its syntax tree does not show; reported along with any pattern."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One use of something banned."""

    pattern: str
    line: int
    """From 1; 0 where the code cannot be parsed."""
    found: str


def banned_patterns(code: str, patterns: Sequence[str]) -> list[Finding]:
    """Return where `code` uses what the patterns ban, in order of lines; empty if nowhere.

    A pattern is a name, dotted or not ("sorted", "os.system", "heapq"), an attribute of
    anything (".sort"), or "import" for any import; "sorted(" is read as "sorted". A name is
    found however it was imported, and a string that names it in getattr() too; comments and
    other strings do not count. With any pattern, ways to hide a name (eval, builtins, ...) are
    found as well, as are code that does not parse and getattr() of a computed name.

    This keeps a task's rules; it does not contain hostile code. The sandbox does.
    """
    wanted = [_normal(pattern) for pattern in patterns]
    if not wanted:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape in a plain string
            tree = ast.parse(code)
        uses = list(_uses(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Finding("syntax", 0, f"the code does not parse: {error}"[:200])]
    names = [*wanted, *(name for name in DYNAMIC if name not in wanted), "getattr(computed)"]
    findings = {
        Finding(pattern, line, use): None
        for use, line in uses
        for pattern in names
        if _matches(use, pattern)
    }
    return sorted(findings, key=lambda each: (each.line, each.pattern))


def _normal(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise ConfigurationError(f"banned pattern {pattern!r} is not a string")
    name = pattern.strip().removesuffix("(").strip().removeprefix("import ").strip()
    if not all(part.isidentifier() for part in name.removeprefix(".").split(".")):
        raise ConfigurationError(
            f"banned pattern {pattern!r} is not a name; write 'sorted', 'os.system', '.sort' or 'import'"
        )
    return name


def _matches(use: str, pattern: str) -> bool:
    if pattern.startswith("."):
        return f"{use}.".find(f"{pattern}.") >= 0
    if use.endswith(".*"):  # from package import *: it may bring the name
        return pattern.startswith(use[:-1])
    return use == pattern or use.startswith(f"{pattern}.")


def _uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that the code uses, dotted, as it is called where it comes from."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                aliases[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                aliases[each.asname or each.name] = f"{node.module or ''}.{each.name}"
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Import(names=names):
                yield "import", line
                for each in names:
                    yield each.name, line
            case ast.ImportFrom(module=module, names=names):
                yield "import", line
                for each in names:
                    yield f"{module or ''}.{each.name}", line
            case ast.Name(id=name, ctx=ast.Load()):
                yield aliases.get(name, name), line
            case ast.Attribute(attr=attr, ctx=ast.Load()):
                yield _dotted(node, aliases) or f".{attr}", line
            case ast.Call(func=ast.Name(id="getattr"), args=[_, name_node, *_]):
                name_value = _text(name_node)
                yield ("getattr(computed)" if name_value is None else name_value), line
                yield f".{name_value}", line
            case ast.Call(func=ast.Name(id="__import__"), args=[module_node, *_]):
                yield _text(module_node) or "__import__", line
            case _:
                pass


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def _text(node: ast.expr) -> str | None:
    """The value of a string that is written out, in pieces perhaps."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
