"""What the documents show is true: code, output, commands, files and links."""

import argparse
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sandboxkit import CommandTimeoutError, Session
from sandboxkit.cli import build_parser
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance._base import until
from tests.packaging.test_surface import ROOT, tracked
from tests.process_list import processes

DOCUMENTS = [path for path in tracked("*.md") if "NOTICE" not in path.name]
README = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()
COMMANDS = (ROOT / "docs" / "command-line.md").read_text()
PROVIDERS = (ROOT / "docs" / "providers.md").read_text()
EXPECTED = ROOT / "tests" / "examples" / "expected"


def marked(kind: str, text: str) -> Iterator[tuple[str, str]]:
    """Each block under a comment `<!-- kind: NAME -->`, with that name."""
    pattern = rf"<!-- {kind}: (\S+) -->\n```\w*\n(.*?)```"
    yield from re.findall(pattern, text, re.DOTALL)


def shell_lines(text: str) -> list[str]:
    """The commands of a document's shell blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line.partition("  #")[0].partition(" # ")[0].strip() for line in lines if line.strip()]


SHELL = sorted({*shell_lines(README), *shell_lines(START), *shell_lines(COMMANDS)})


@pytest.mark.parametrize("kind", ["file", "output"])
def test_code_and_output_in_documents_are_those_of_the_examples(kind: str) -> None:
    blocks = [each for path in DOCUMENTS for each in marked(kind, path.read_text())]
    assert "examples/quickstart.py" in [name for name, _ in blocks]
    for name, block in blocks:
        path = ROOT / name if kind == "file" else EXPECTED / f"{Path(name).stem}.txt"
        assert block == path.read_text(), name


# .ci/run runs the whole demo, with the README's other first commands.
RUN = [line for line in SHELL if line.startswith("sandboxkit ") and line != "sandboxkit demo"]


@pytest.mark.parametrize("line", RUN)
def test_a_command_of_a_page_runs(line: str) -> None:
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    environment["SANDBOXKIT_PROVIDER"] = "local"
    done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if " run " in line:
        assert done.stdout == "42\n"


@pytest.mark.parametrize("line", [x for x in SHELL if x.startswith("make ")])
def test_make_knows_the_targets_of_a_page(line: str) -> None:
    # .ci/run runs them; the suite cannot run itself.
    subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_the_picture_shows_what_its_commands_print() -> None:
    script: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "terminal.py"))
    picture: Path = script["PICTURE"]
    assert picture.stat().st_size <= 20_000
    assert f"]({picture.relative_to(ROOT)})" in README
    texts = [str(each.text).split() for each in ElementTree.parse(picture).iter() if each.text]
    shown = [" ".join(words) for words in texts if words]
    *quick, demo = script["COMMANDS"]
    for command in quick:
        assert script["recorded"](command).splitlines() == [shown[shown.index(f"$ {command}") + 1]]
    assert f"$ {demo}" in shown
    assert "as expected: every reference passes, every broken variant fails" in shown


def test_a_verb_has_the_options_that_the_page_names() -> None:
    rows = re.findall(r"^\| ((?:`[a-z ]+`(?:, )?)+) \| (.*) \|$", COMMANDS, re.MULTILINE)
    named = [(verbs, found) for verbs, text in rows for found in re.findall(r"`(-[-a-z]+)", text)]
    assert ("`logs`", "-f") in named
    parser = build_parser()
    for verbs, option in named:
        helps = [_help(parser, verb.split()) for verb in re.findall("`([a-z ]+)`", verbs)]
        assert any(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for text in helps), option


def _help(parser: argparse.ArgumentParser, words: list[str]) -> str:
    for word in words:
        (verbs,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = verbs.choices[word]
    return parser.format_help()


def test_the_page_names_every_verb_and_exit_code_of_the_help() -> None:
    shown = build_parser().format_help()
    verbs = re.findall(r"^    ([a-z]+) ", shown, re.MULTILINE)
    assert len(verbs) > 5
    assert [verb for verb in verbs if not re.search(rf"`{verb}[ `]", COMMANDS)] == []
    listed = shown.partition("exit codes:\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", COMMANDS, re.MULTILINE)
    assert [f"{code} {output.replace('`', '')}" for code, output in rows] == [
        " ".join(line.split()) for line in listed.splitlines()
    ]


@pytest.mark.parametrize("text", [README, PROVIDERS], ids=["README", "providers"])
def test_the_provider_table_has_a_row_for_each_provider(text: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = set(project["entry-points"]["sandboxkit.providers"])
    table = text.partition("\n| provider |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == declared


def test_links_lead_to_files() -> None:
    # What is made when the site is built, its build checks: `make docs`.
    made = ROOT / "docs" / "reference"
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            file = Path(os.path.normpath(path.parent / target))
            assert "://" in target or made in file.parents or file.exists(), f"{path}: {target}"


def tree() -> dict[str, str]:
    """The file tree of ARCHITECTURE.md: path to what is said about it."""
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## The files")[2]
    found: dict[str, str] = {}
    parent = ""
    for line in page.split("```")[1].strip("\n").splitlines():
        name, _, output = line.strip().partition(" ")
        parent = parent if line.startswith(" ") else ""
        found[f"{parent}{name}"] = output.strip()
        parent = parent or name
    return found


def test_the_file_tree_is_complete_and_annotated() -> None:
    for name, output in tree().items():
        assert (ROOT / name).exists(), name
        assert output, name
    listed = {name.rstrip("/") for name in tree()}
    paths = {path.relative_to(ROOT) for path in tracked()}
    links = {Path("sandboxkit/providers"), Path("sandboxkit/integrations")}
    folders = {Path(name).parts[0] for name in listed if (ROOT / name).is_dir()}
    top = {path.parts[0] for path in paths if len(path.parts) > 1}
    assert top - folders <= {"docs", ".ci"}
    for folder in {name.rpartition("/")[0] for name in listed} - {"", ".ci"}:
        depth = folder.count("/") + 1
        children = {
            "/".join(path.parts[: depth + 1])
            for path in paths | links
            if str(path).startswith(f"{folder}/") and path.name != "py.typed"
        }
        assert children - listed <= {f"{folder}/__init__.py"}, folder


def test_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:sandboxkit|providers|integrations|agent)/[\w./]+)`", page)
    assert len(named) > 60
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_provider_of_the_guide_kills_whole_trees(tmp_path: Path) -> None:
    """All else that it does, the guide's own blocks show."""
    guide = (ROOT / "docs" / "guides" / "write-a-provider.md").read_text()
    names: dict[str, Any] = {"__name__": "my_package"}
    exec(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0], names)
    names["ROOT"] = tmp_path
    provider: type[Provider] = names["FolderProvider"]
    with Session(provider()) as session:
        marker = f"sleep 98765.{os.getpid()}"
        process = session.run(["sh", "-c", f"setsid {marker} & {marker}"], timeout=1)
        with pytest.raises(CommandTimeoutError):
            process.result()
        # The kernel ends the processes of a namespace after its first one.
        until(lambda: all(each.args != marker for each in processes()), "the tree is dead", 60)
