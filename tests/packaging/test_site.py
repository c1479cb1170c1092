"""The site's generated pages are complete, and the commands behind its claims are there."""

import argparse
import functools
import importlib
import importlib.util
import re
import runpy
import shlex
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from sandboxkit import errors
from sandboxkit.cli import build_parser
from sandboxkit.testing.conformance import ProviderConformance
from tests.packaging.test_surface import PUBLIC_MODULES, ROOT, tracked

# Any: the scripts' own functions.
REFERENCE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "docs" / "reference.py"))
COMMANDS: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "docs" / "commands.py"))
CLAIMS = re.findall(r"`((?:pytest|python|make) [^`]+)`", (ROOT / "docs/security.md").read_text())


@functools.cache
def explained() -> set[str]:
    return {
        name
        for page in REFERENCE["pages"]().values()
        for name in re.findall(r"^::: (\S+)$", page, re.M)
    }


@pytest.mark.parametrize("module", [name for name in PUBLIC_MODULES if name != "sandboxkit.types"])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    if module == errors.__name__:
        module = "sandboxkit"
    names = {f"{module}.{each}" for each in importlib.import_module(module).__all__}
    assert names - explained() == set()


def test_every_public_package_is_in_the_reference() -> None:
    shown = {name.rpartition(".")[0] for name in explained()}
    roots = {"integrations": "sandboxkit.integrations", "providers": "sandboxkit.providers"}
    for folder, root in {**roots, "sandboxkit": "sandboxkit"}.items():
        for path in tracked(f"{folder}/*/__init__.py"):
            name = path.parent.name
            if path.parent.parent.name != folder or name.startswith("_") or name == "cli":
                continue
            if "\n__all__ = " in path.read_text():
                assert f"{root}.{name}" in shown


def test_constructors_that_refuse_a_direct_call_are_not_in_the_reference() -> None:
    core = [
        name for name in explained() if not re.match(r"sandboxkit\.(integrations|providers)", name)
    ]
    names = [name.rpartition(".") for name in core]
    classes = [getattr(importlib.import_module(module), name) for module, _, name in names]
    made = {
        each.__name__
        for each in classes
        if "Made by `" in (each.__doc__ or "")
        or "for a direct call" in (getattr(each, "__new__", object).__doc__ or "")
    }
    assert {"Sandbox", "Snapshot", "Terminal"} <= made
    assert made - REFERENCE["MADE"] == set()


def test_every_setting_of_a_grpo_run_is_in_the_reference() -> None:
    pytest.importorskip("torch")
    config = importlib.import_module("sandboxkit.integrations.grpo.config")
    page = REFERENCE["settings"]()
    for section, kind in get_type_hints(config.Config).items():
        part = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert [each.name for each in fields(kind) if f"\n| `{each.name}` |" not in part] == []


def test_every_verb_and_option_is_in_the_reference() -> None:
    page = COMMANDS["document"]()
    verbs = dict(COMMANDS["walk"](build_parser()))
    assert {("run",), ("grpo", "show")} <= set(verbs)
    for names, parser in verbs.items():
        heading = f"\n{'#' * (len(names) + 1)} sandboxkit {' '.join(names)}\n"
        assert heading in page
        part = page.partition(heading)[2].partition("\n## ")[0]
        shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
        flags = [flag for each in shown if each.dest != "help" for flag in each.option_strings]
        assert [flag for flag in flags if f"`{flag}" not in part] == []


def test_the_commands_behind_claims_are_there() -> None:
    assert len(CLAIMS) > 10
    assert [command for command in CLAIMS if not exists(*shlex.split(command))] == []


def exists(tool: str, *words: str) -> bool:
    """Whether there is what a command of make, of a Python module or of pytest names."""
    if tool == "make":
        return f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
    if tool == "python":
        return importlib.util.find_spec(words[1]) is not None
    wanted = words[words.index("-k") + 1] if "-k" in words else ""
    for path in [word for word in words if word.startswith("tests/")]:
        if not (ROOT / path).exists():
            return False
        tests = (ROOT / path).read_text() if path.endswith(".py") else "def test_"
        names = re.findall(r"def (test_\w*)", tests)
        names += dir(ProviderConformance) if "ProviderConformance" in tests else []
        if not any(wanted in name for name in names):
            return False
    return True
