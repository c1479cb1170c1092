"""The code blocks of a document, run as its reader would run them.

Every `python` block of a page runs, in order and in one namespace. A `text` block directly behind it
is what it prints. A comment on the line before exempts a block: `<!-- not run: REASON -->`, or
`<!-- file: PATH -->` for a whole example, which is run as one.

    python -W error -m tests.packaging.snippets PAGE
"""

import ast
import io
import linecache
import re
import sys
import textwrap
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>```+) ?(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)(?P=fence) *$\n?",
    re.MULTILINE | re.DOTALL,
)
EXEMPT = re.compile(r"<!-- (?:not run: .*\S|file: \S+) -->\n *\Z")


@dataclass(frozen=True)
class Snippet:
    """One block that runs: its code, the line it begins on, and what it prints if that is told."""

    code: str
    line: int
    printed: str | None


def snippets(text: str) -> list[Snippet]:
    found: list[Snippet] = []
    blocks = list(BLOCK.finditer(text))
    for block, after in zip_longest(blocks, blocks[1:]):
        if block["language"] != "python" or EXEMPT.search(text, 0, block.start()):
            continue
        printed = None
        if after is not None and after["language"] == "text":
            behind = not text[block.end() : after.start()].strip()
            printed = textwrap.dedent(after["body"]) if behind else None
        line = text.count("\n", 0, block.start("body")) + 1
        found.append(Snippet(textwrap.dedent(block["body"]), line, printed))
    return found


def play(page: str) -> None:
    """Run a page; raises AssertionError where a block prints something else than the page says."""
    path = Path(page)
    text = path.read_text()
    linecache.cache[page] = (len(text), None, text.splitlines(keepends=True), page)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = page
    for each in snippets(text):
        tree = ast.increment_lineno(ast.parse(each.code, page), each.line - 1)
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(tree, page, "exec"), module.__dict__)
        if each.printed is not None:
            message = out.getvalue()
            assert message == each.printed, (
                f"{page}:{each.line} printed\n{message}not\n{each.printed}"
            )


if __name__ == "__main__":
    play(sys.argv[1])
