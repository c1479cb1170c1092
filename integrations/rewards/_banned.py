"""Find forbidden names in a submission's syntax tree; text in comments and strings does not count."""

import ast
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards._parse import UNPARSABLE, parse

DYNAMIC = ("eval", "exec", "compile", "__import__", "__builtins__", "builtins", "importlib")
"""Names that can reach another name without showing it in the syntax tree; always reported."""

_COMPUTED = "getattr(computed)"

MOST_CODE = 20_000
"""Maximum number of characters that are parsed. Python needs up to 0.1 s for code of this size, and
the time grows faster than linearly with the length of an imported name or a string."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One use of a banned pattern. `found` is the name as used, with aliases resolved, or an error text."""

    pattern: str
    line: int
    """Line number, from 1; 0 if the code does not parse or is too long to be parsed."""
    found: str


def banned_patterns(code: str, patterns: Sequence[str]) -> list[Finding]:
    """Return every use of a banned pattern in `code`, in line order.

    A pattern is a plain or dotted name ("sorted", "os.system", "heapq"), an attribute of any
    object (".sort"), or "import" for every import; "sorted(" means "sorted". A name is found
    under every alias, and as the string argument of getattr(); comments and other strings do
    not count. If there is any pattern, the result also reports ways to hide a name (eval,
    builtins, ...), getattr() of a computed name, code that does not parse, and code of more
    than 20,000 characters. Raises ConfigurationError for a pattern that is not a name.

    This enforces a task's rules; it does not contain hostile code. The sandbox does.
    """
    wanted = frozenset(map(_normal, patterns))
    if not wanted:
        return []
    if len(code) > MOST_CODE:
        detail = f"the code has {len(code)} characters; only code of up to {MOST_CODE} is checked"
        return [Finding("length", 0, detail)]
    wanted |= {*DYNAMIC, _COMPUTED}
    most = max(pattern.count(".") + 1 for pattern in wanted)
    matches = functools.cache(lambda use: _matches(use, wanted, most))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape in a plain string
            tree = parse(code)
        uses = dict.fromkeys(_uses(tree, most))
    except UNPARSABLE as error:
        return [Finding("syntax", 0, f"the code does not parse: {error}"[:200])]
    findings = [Finding(pattern, line, use) for use, line in uses for pattern in matches(use)]
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


def _matches(use: str, wanted: frozenset[str], most: int) -> list[str]:
    """Return the patterns of at most `most` parts that match a dotted use, sorted."""
    parts = use.split(".")
    found = {
        f"{'.' if start else ''}{'.'.join(parts[start : start + size])}"
        for start in range(len(parts))
        for size in range(1, most + 1)
    } & wanted
    if use.endswith(".*"):  # `from package import *` may import a banned name
        found |= {name for name in wanted if name.startswith(use[:-1])}
    return sorted(found)


def _uses(tree: ast.Module, most: int) -> Iterator[tuple[str, int]]:
    """Yield every name that the code uses and its line; names are dotted, with aliases resolved.

    A very long name is reduced to its first and last `most` parts, the only ones patterns match.
    """
    aliases: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                first = each.name.partition(".")[0]
                aliases[each.asname or first] = (
                    _shortened(each.name, most) if each.asname else first
                )
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                name = f"{node.module or ''}.{each.name}"
                aliases[each.asname or each.name] = _shortened(name, most)
    for node in nodes:
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
            case ast.Attribute(ctx=ast.Load()):
                yield _dotted(node, aliases, most), line
            case ast.Call(func=ast.Name(id="getattr"), args=[_, name_node, *_]):
                name_value = _text(name_node)
                yield (_COMPUTED if name_value is None else name_value), line
                yield f".{name_value}", line
            case ast.Call(func=ast.Name(id="__import__"), args=[module_node, *_]):
                yield _text(module_node) or "__import__", line
            case _:
                pass


def _dotted(node: ast.Attribute, aliases: Mapping[str, str], most: int) -> str:
    """Return an attribute's dotted name with aliases resolved; it begins with "." for `call().name`."""
    parts, owner = [node.attr], node.value
    while isinstance(owner, ast.Attribute) and len(parts) < most:
        parts.append(owner.attr)
        owner = owner.value
    name = aliases.get(owner.id, owner.id) if isinstance(owner, ast.Name) else ""
    return ".".join([name, *reversed(parts)])


def _shortened(name: str, most: int) -> str:
    parts = name.split(".")
    return name if len(parts) <= 2 * most else ".".join([*parts[:most], "", *parts[-most:]])


def _text(node: ast.expr) -> str | None:
    """Return the value of a string literal or of concatenated (`+`) literals, else None."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
