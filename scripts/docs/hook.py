"""MkDocs hook: adds the generated pages, sets the navigation and rewrites links that leave docs/."""

import re
from pathlib import Path
from typing import Any

import commands
import places
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = places.ROOT / "docs"
FIRST = ["index.md", "calls.md", "providers.md", "command-line.md"]
REFERENCE = ["options.md", "reference/command-line.md"]
MEASURED = [
    "benchmarks.md",
    "security.md",
    "untested.md",
    "chaos.md",
    "grpo-overnight.md",
    "live.md",
    "kubernetes-scale.md",
]
PROJECT = {path: page for path, page in places.PROJECT.items() if page != "index.md"}

ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")

_repository: dict[str, str] = {}
"""Maps the page of each file outside docs/ to the file's path in the repository."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation. Pages in docs/ that no list here names are put among the guides."""
    loose = sorted(path.name for path in DOCS.glob("*.md"))
    named = {*FIRST, *REFERENCE, *MEASURED}
    guides = [*_folder("guides"), *(name for name in loose if name not in named)]
    api = [f"reference/{name}.md" for name in reference.entries()]
    config.nav = [
        {"Start": [name for name in FIRST if name in loose]},
        *([{"Concepts": concepts}] if (concepts := _folder("concepts")) else []),
        {"Guides": guides},
        {
            "Reference": [
                "reference/index.md",
                *(name for name in REFERENCE if name in loose or "/" in name),
                {"API": api},
                f"reference/{reference.SETTINGS}.md",
            ]
        },
        {"Measured": [name for name in MEASURED if name in loose]},
        {"Project": list(PROJECT.values())},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages for the reference, the project's documents and every repository file that is linked to."""
    made = {**reference.pages(), "reference/command-line.md": commands.document()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    _repository.clear()
    todo = [*PROJECT]
    for page in files.documentation_pages():
        if page.src_uri not in made:
            places.rewritten(page.content_string, f"docs/{page.src_uri}", todo.append)
    for path in todo:  # `rewritten` appends to the list meanwhile
        page = places.on_site(path)
        if path in ("README.md",) or page in _repository:
            continue
        _repository[page] = path
        is_document = path.endswith(".md")
        text = (places.ROOT / path).read_text() if is_document else places.shown(path)
        places.rewritten(text, path, todo.append)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite each link to lead to the page that shows its target."""
    markdown = ROW.sub(_bars, markdown)
    uri = page.file.src_uri
    path = _repository.get(uri, f"docs/{uri}")
    if uri.startswith("reference/"):
        return markdown
    return places.rewritten(markdown, path, lambda _: None)


def _bars(row: re.Match[str]) -> str:
    """Unescape the bars in a table row's code: MkDocs, unlike other renderers, needs no escapes there."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def _folder(name: str) -> list[str]:
    """List a folder's pages: the index, then those it links to in its order, then the others."""
    found = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / name).rglob("*.md"))
    index = f"{name}/index.md"
    text = (DOCS / index).read_text() if index in found else ""
    return sorted(found, key=lambda each: (each != index, _position(text, Path(each).name)))


def _position(text: str, name: str) -> int:
    found = text.find(f"]({name}")
    return found if found >= 0 else len(text)
