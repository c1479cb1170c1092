"""Maps files of the repository to pages of the site, and renders those outside docs/."""

import ast
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "README.md": "index.md",
}
FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".go": "go", ".sh": "sh", ".yaml": "yaml", ".toml": "toml"}


def on_site(path: str) -> str:
    """Return the site's page for a path of the repository, be it a file or a folder."""
    if path in PROJECT:
        return PROJECT[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def rewritten(text: str, path: str, wanted: Callable[[str], None]) -> str:
    """Return a document's text with its links rewritten for the site.

    `path` is the document's own path. `wanted` is called with each linked path outside `docs`.
    """
    here = posixpath.dirname(path)
    page = posixpath.dirname(on_site(path))

    def link(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:", target):
            return match[0]
        meant = posixpath.normpath(posixpath.join(here, target))
        if not (ROOT / meant).exists():
            meant = meant if meant.startswith("docs/") else f"docs/{meant}"  # a generated page
        elif not meant.startswith("docs/"):
            wanted(meant)
        return f"]({posixpath.relpath(on_site(meant), page or '.')}{match[2] or ''})"

    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def shown(path: str) -> str:
    """Return the page for a source file, or for a folder: a list of its files."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.is_file())
        lines = (
            f"- [`{name}`]({file.name}/{name}){_summary(file / name)}\n"
            for name in names
            if name != "__init__.py"
        )
        return f"# {path}\n\n{''.join(lines)}"
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{file.read_text()}````\n"


def _summary(file: Path) -> str:
    """Return the first line of a Python file's docstring, as a suffix; empty without one."""
    if file.suffix != ".py":
        return ""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return f": {text.partition(chr(10))[0]}" if text else ""
