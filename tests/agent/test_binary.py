"""The agent's source and programs; the loader is one of a few hundred bytes that becomes the agent."""

import gzip
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit.providers._agent import binary
from tests.components import require_root

PART = 1_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system of nothing but the loader and the agent's parts."""
    require_root("chroot needs root")
    folder = tmp_path / ".sandboxkit"
    folder.mkdir()
    (folder / "loader").write_bytes(binary.loader().read_bytes())
    (folder / "loader").chmod(0o755)
    data = binary.path().read_bytes()
    for number, at in enumerate(range(0, len(data), PART)):
        (folder / f"p{number}").write_bytes(data[at : at + PART])
    return tmp_path


def load(root: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["chroot", root, "/.sandboxkit/loader", *argv], capture_output=True, text=True, timeout=20
    )


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_the_loader_is_tiny_and_the_packed_agent_is_the_agent(arch: str) -> None:
    data = binary.loader(arch).read_bytes()
    assert data.startswith(b"\x7fELF")
    assert len(data) < 1024
    assert gzip.decompress(binary.packed(arch).read_bytes()) == binary.path(arch).read_bytes()


def test_the_loader_becomes_the_agent_with_its_arguments(root: Path) -> None:
    done = load(root, "connect", "/nothing here")
    assert done.returncode == 70
    assert done.stderr == (
        "sandbox agent: dial unix /nothing here: connect: no such file or directory\n"
    )


def test_an_unreadable_part_is_not_the_last_one_and_no_parts_are_no_program(root: Path) -> None:
    (root / ".sandboxkit" / "p1").unlink()
    (root / ".sandboxkit" / "p1").mkdir()
    assert load(root, "connect", "/x").returncode == 72
    (root / ".sandboxkit" / "p0").unlink()
    assert load(root, "connect", "/x").returncode == 73


PROJECT = Path(__file__).resolve().parents[2]
AGENT = PROJECT / "agent"
OFFLINE = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off"}


@pytest.mark.timeout(900)  # on a busy machine, with nothing compiled yet
@pytest.mark.parametrize("check", ["vet", "test"])
def test_the_source_of_the_agent_passes(check: str) -> None:
    go = runpy.run_path(str(AGENT / "build.py"))["find_go"]()
    done = subprocess.run(
        [go, check, "./..."],
        cwd=AGENT,
        env={**os.environ, **OFFLINE, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with this project's sources, in which no agent was built."""
    made = tmp_path / "a clone"
    made.mkdir()
    copy = f"git ls-files -z sandboxkit providers integrations agent/build.py | xargs -0 cp --parents --no-dereference -t '{made}'"
    subprocess.run(["bash", "-c", copy], cwd=PROJECT, check=True)
    return made


HELLO = """
from sandboxkit import Session
with Session("local") as session:
    print(session.run(["echo", "hello"]).result().stdout, end="")
"""


def in_clone(clone: Path, installed: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program in the root of a clone, where Python imports the clone's sources."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", HELLO]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)


def test_a_program_in_a_clones_root_uses_the_installed_agent(clone: Path, tmp_path: Path) -> None:
    inside = tmp_path / "installed" / "sandboxkit" / "providers" / "_agent"
    inside.mkdir(parents=True)
    (inside / "bin").symlink_to(binary.path().parent)
    done = in_clone(clone, tmp_path / "installed")
    assert done.stdout == "hello\n", done.stderr


def test_a_clone_without_an_agent_names_the_command_that_brings_one(clone: Path) -> None:
    done = in_clone(clone, clone)
    assert f"the sandboxkit in {str(clone)!r} has no agent-linux-" in done.stderr
    assert done.stderr.rstrip().endswith(f"pip install '{clone}'")
