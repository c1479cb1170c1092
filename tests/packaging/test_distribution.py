"""Whoever follows one of our messages installs this distribution, and never a stranger's."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import _distribution
from tests.data_here import beside
from tests.packaging.test_surface import ROOT, tracked

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME: str = PROJECT["project"]["name"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
NAMED = r"[A-Za-z0-9][A-Za-z0-9._-]*"
WRONG = beside(__file__, "distribution.toml")["wrong"]
STRANGER = "sandboxkit-9.9.dist-info"


def texts() -> list[Path]:
    """What we ship or show: code, documents and scripts; not the tests."""
    kinds = ("py", "md", "toml", "sh", "go", "yml", "yaml", "txt", "ipynb")
    paths = tracked(*(f"*.{kind}" for kind in kinds), "*Makefile", ".ci/run")
    return [path for path in paths if path.relative_to(ROOT).parts[0] != "tests"]


def joined(path: Path) -> str:
    """Its text, in which a message that goes on in the next line is in one piece."""
    text = re.sub(r"[\"']\s*\n\s*f?[\"']", "", path.read_text())
    return re.sub(r"\s*\n[ \t#]*", " ", text)


def wrong(text: str, known: set[str]) -> list[str]:
    """What a text tells to install although it is neither ours nor a declared dependency."""
    found: list[str] = []
    for match in re.finditer(r"pip install((?: -\S+)*) (['\"]?)(" + NAMED + r")(\[[^]]*\])?", text):
        if match[1].endswith("--group"):
            continue
        name, extras = match[3].rstrip("."), (match[4] or "[]")[1:-1]
        if name == NAME:
            found += [each for each in filter(None, extras.split(",")) if each not in EXTRAS]
        elif name.lower() not in known:
            found.append(name)
    found += re.findall(r"(?<!un)install (?:the package )?sandboxkit(?!-sdk\b|_)\S*", text)
    return found + re.findall(r"install (?:\S+ )?with its extra|install the extra", text)


def declared() -> set[str]:
    """The distributions that this project declares as its dependencies, and pip itself."""
    lists: list[list[str]] = [
        PROJECT["project"]["dependencies"],
        *EXTRAS.values(),
        *GROUPS.values(),
    ]
    words = [re.match(NAMED, each) for many in lists for each in many]
    return {word[0].lower() for word in words if word} | {"pip"}


def test_the_name_in_the_messages_is_the_distributions() -> None:
    assert _distribution.NAME == NAME
    assert _distribution.install("e2b") == f"pip install '{NAME}[e2b]'"


def test_no_text_names_a_package_that_is_not_ours() -> None:
    known = declared()
    found = {str(path.relative_to(ROOT)): wrong(joined(path), known) for path in texts()}
    assert len(found) > 100
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize("text", WRONG)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert wrong(text.replace("NAME", NAME), declared())


def said(*argv: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=path,
        capture_output=True,
        text=True,
        check=False,
    )


PROVIDERS = {"docker": "docker", "e2b": "e2b", "modal": "modal", "kubernetes": "yaml"}
PROVIDERS |= {"daytona": "daytona_api_client_async", "service": "aiohttp"}
INTEGRATIONS = {"trl": "trl", "inspect": "inspect_ai", "smolagents": "smolagents"}
INTEGRATIONS |= {"openai-agents": "agents", "rewards": "pydantic"}
NEED = "from sandboxkit import Session, cli, telemetry; "


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        *((f"{NEED}Session({name!r})", package, name) for name, package in PROVIDERS.items()),
        *(
            (f"import sandboxkit.integrations.{name.replace('-', '_')}", package, name)
            for name, package in INTEGRATIONS.items()
        ),
        (f"{NEED}cli.main(['doctor'])", "rich", "cli"),
        (f"{NEED}telemetry.enable()", "opentelemetry", "otel"),
    ],
)
def test_a_missing_package_names_ours(code: str, package: str, extra: str, tmp_path: Path) -> None:
    assert extra in EXTRAS
    whole = f"import sys; sys.modules[{package!r}] = None; {code}"
    last = said("-c", whole, path=tmp_path).stderr.splitlines()[-1]
    remedy = re.escape(f": pip install '{NAME}[{extra}]'")
    assert re.search(rf"'{package}[.\w-]*'{remedy}", last)


def test_our_package_alone_is_imported(tmp_path: Path) -> None:
    (tmp_path / "sandboxkit").symlink_to(ROOT / "sandboxkit")
    (tmp_path / "sandboxkit_sdk-0.1.0.dist-info").mkdir()
    done = said("-c", "import sandboxkit; print(sandboxkit.__file__)", path=tmp_path)
    assert done.stdout.strip() == str(tmp_path / "sandboxkit" / "__init__.py")


def test_a_package_that_a_stranger_was_installed_into_says_so(tmp_path: Path) -> None:
    (tmp_path / "sandboxkit").symlink_to(ROOT / "sandboxkit")
    (tmp_path / STRANGER).mkdir()
    last = said("-c", "import sandboxkit", path=tmp_path).stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {STRANGER} in {str(tmp_path)!r} is somebody else's")
    assert f"'pip uninstall sandboxkit {NAME}' and install {NAME} again" in last


def test_our_command_says_so_where_the_strangers_package_replaced_our_own(tmp_path: Path) -> None:
    package = tmp_path / "sandboxkit"
    package.mkdir()
    for entry in (ROOT / "sandboxkit").iterdir():
        if entry.name not in ("__init__.py", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    (package / "__init__.py").write_text('"""The stranger\'s."""\n')
    (tmp_path / STRANGER).mkdir()
    done = said("-m", "sandboxkit", "--version", path=tmp_path)
    assert done.returncode != 0
    assert f"{STRANGER} in {str(tmp_path)!r} is somebody else's" in done.stderr.splitlines()[-1]


def test_doctor_warns_of_a_stranger_that_lies_elsewhere(tmp_path: Path) -> None:
    (tmp_path / STRANGER).mkdir()
    done = said("-m", "sandboxkit", "doctor", "--json", "-p", "docker", path=tmp_path)
    assert f"warning: {STRANGER} in {str(tmp_path)!r} is somebody else's" in done.stderr
