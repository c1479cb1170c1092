"""MkDocs hook: makes the navigation, the generated pages, links out of docs/, and Markdown beside the pages."""

import posixpath
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import commands
import places
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

DOCS = places.ROOT / "docs"
FIRST = ["index.md", "start.md", "calls.md", "where-it-runs.md", "providers.md", "command-line.md"]
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
DOCSTRINGS = re.compile(r"^::: (\S+)(?:\n    .*)*", re.MULTILINE)
ITEM = re.compile(r"^- \[[^]]*\]\(([^)]+)\)", re.MULTILINE)

_repository: dict[str, str] = {}
"""Maps the page of each file outside docs/ to the file's path in the repository."""

_ordered: list[Page] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation. The strict build fails for a page in docs/ that is not in it."""
    api = [f"reference/{name}.md" for name in reference.entries()]
    (concepts,) = _linked("concepts").values()
    config.nav = [
        {"Start": FIRST},
        {"Concepts": ["concepts/index.md", *concepts]},
        {
            "Guides": [
                "guides/index.md",
                *({each: pages} for each, pages in _linked("guides").items()),
            ]
        },
        {
            "Reference": [
                "reference/index.md",
                *REFERENCE,
                {"API": api},
                f"reference/{reference.SETTINGS}.md",
            ]
        },
        {"Measured": MEASURED},
        {"Project": list(PROJECT.values())},
    ]
    return config


def on_nav(nav: Navigation, **_: Any) -> None:
    """Keep the order of the pages, for `llms.txt`."""
    _ordered[:] = nav.pages


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


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:  # Any: Jinja's, not used
    """Write the Markdown of each page beside it, and `llms.txt`, which lists the pages."""
    site = Path(config.site_dir)
    for file in files.documentation_pages():
        text = file.page.markdown if file.page else None
        beside = site / file.src_uri
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(DOCSTRINGS.sub(r"- `python -m pydoc \1` prints it", text or ""))
    lines = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    for section, pages in groupby(_ordered, key=lambda page: page.ancestors[-1].title):
        lines.append(f"\n## {section}\n\n")
        lines += [f"- [{page.title}]({page.file.src_uri})\n" for page in pages]
    (site / "llms.txt").write_text("".join(lines))


def _bars(row: re.Match[str]) -> str:
    """Unescape the bars in a table row's code: MkDocs, unlike other renderers, needs no escapes there."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def _linked(folder: str) -> dict[str, list[str]]:
    """Map each heading of a folder's index to the pages of its list, in their order."""
    text = (DOCS / folder / "index.md").read_text()
    groups = [each.partition("\n") for each in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]]
    found = {
        title: [posixpath.normpath(f"{folder}/{name}") for name in ITEM.findall(body)]
        for title, _, body in groups
    }
    return {title: pages for title, pages in found.items() if pages}
