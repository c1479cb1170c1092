"""Sandboxes for kernels: a local one that has ipykernel, and one of docker, which has none."""

import importlib.metadata
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Sandbox, Session
from sandboxkit.kernel import Kernel
from tests.data_here import beside
from tests.docker_here import require_docker

CELLS = beside(__file__, "cells.toml")
SITE = "/opt/packages"
_LEFT_OUT = {"debugpy", "jedi"}  # large, and not needed to run cells
KINDS = {"local-ipykernel": True, "local-own": False}


def _needed(name: str, found: dict[str, list[Path]]) -> None:
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in found or name in _LEFT_OUT:
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # for another system
    found[name] = [
        Path(str(distribution.locate_file(top)))
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    ]
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            _needed(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], found)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ipykernel, matplotlib and all that they need."""
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("packages")
    found: dict[str, list[Path]] = {}
    _needed("ipykernel", found)
    _needed("matplotlib", found)
    for path in {path for paths in found.values() for path in paths if path.exists()}:
        if not path.is_dir():
            shutil.copy2(path, folder)
        elif path.name != "__pycache__":
            ignored = shutil.ignore_patterns("tests", "*.pyi")
            shutil.copytree(path, folder / path.name, ignore=ignored, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def local() -> Iterator[Sandbox]:
    with Session("local", env={"PYTHONPATH": SITE}) as session:
        yield session.sandbox().start().result(60)


@pytest.fixture(scope="session")
def docker() -> Iterator[Sandbox]:
    with Session("docker", image=require_docker()) as session:
        yield session.sandbox().start().result(60)


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def box(local: Sandbox, packages: Path) -> Sandbox:
    local.upload(packages, SITE).result(600)
    return local


@pytest.fixture(scope="session")
def kept(box: Sandbox, kind: str) -> Iterator[Kernel]:
    """One for all tests that leave it as it was."""
    with box.python(ipykernel=KINDS[kind], env={"TMPDIR": "/opt"}) as kernel:
        yield kernel


@pytest.fixture
def kernel(box: Sandbox, kind: str) -> Iterator[Kernel]:
    """One for a test that ends it."""
    with box.python(ipykernel=KINDS[kind]) as kernel:
        yield kernel
