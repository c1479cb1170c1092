"""A wheel that was built from the sdist installs and works on its own."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(600)

LOAD_EVERYTHING = """
import importlib.metadata, json, pathlib, sys
import sandboxkit
from sandboxkit.providers._agent import binary

entries = importlib.metadata.entry_points(group="sandboxkit.providers")
classes = {entry.name: entry.load() for entry in entries}
files = [sandboxkit.__file__] + [sys.modules[each.__module__].__file__ for each in classes.values()]
print(json.dumps({
    "names": {name: each.name for name, each in classes.items()},
    "outside": [file for file in files if not file.startswith(sys.prefix)],
    "agents": [binary.path(arch).stat().st_size for arch in ("amd64", "arm64")],
    "typed": (pathlib.Path(sandboxkit.__file__).parent / "py.typed").exists(),
    "version": importlib.metadata.version("sandboxkit-sdk"),
    "package_version": sandboxkit.__version__,
}))
"""


def run(*argv: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command away from the source tree; it must succeed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, built from a copy of what git knows, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    present = b"\0".join(
        name for name in names.split(b"\0") if os.path.lexists(ROOT / os.fsdecode(name)) and name
    )
    source.mkdir()
    packed = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=present, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=packed, check=True)
    out = folder / "dist"
    # Without isolation: the build's requirements are in the dev group.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, cwd=folder)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def python(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that holds the wheel and its extras."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    interpreter = folder / "venv" / "bin" / "python"
    wanted = f"sandboxkit-sdk[local,docker,daytona,e2b,modal,cli] @ {built[1].as_uri()}"
    run(
        interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", wanted, cwd=folder
    )
    return interpreter


def test_every_entry_point_loads_from_the_installed_wheel(python: Path, tmp_path: Path) -> None:
    said = json.loads(run(python, "-I", "-c", LOAD_EVERYTHING, cwd=tmp_path))
    assert said["outside"] == []
    assert all(name == declared for name, declared in said["names"].items())
    assert {"daytona", "docker", "e2b", "local", "modal"} <= set(said["names"])
    assert said["typed"]
    assert min(said["agents"]) > 500_000
    assert said["version"] == said["package_version"]


def test_the_installed_command_runs(python: Path, tmp_path: Path) -> None:
    assert "doctor" in run(python.with_name("sandboxkit"), "--help", cwd=tmp_path)


def test_the_quickstart_runs_on_the_installed_wheel(python: Path, tmp_path: Path) -> None:
    printed = run(
        python, "-I", ROOT / "examples" / "quickstart.py", cwd=tmp_path, SANDBOXKIT_PROVIDER="local"
    )
    assert printed == (ROOT / "tests/examples/expected/quickstart.txt").read_text()


def test_the_wheel_holds_data_files_and_nothing_of_the_tests(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "sandboxkit",
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
    assert any(name.endswith("LICENSE") for name in names)


def test_the_sdist_holds_the_agents_source(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for path in (ROOT / "agent").glob("*"):
        if path.suffix in (".go", ".mod") and not path.name.endswith("_test.go"):
            assert f"agent/{path.name}" in names
    assert "agent/build.py" in names
