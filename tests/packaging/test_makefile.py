"""The Makefile finds a Python: the newest that works, from 3.11 on, or the one that is given."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.test_surface import ROOT

WORKS, BROKEN = "exit 0", "echo 'pyenv: command not found' >&2; exit 127"
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1 ;; esac'


def made(folder: Path, *given: str, **pythons: str) -> "subprocess.CompletedProcess[str]":
    """Run `make demo` where PATH has these programs alone, named by their minor versions."""
    make, seq = (shutil.which(name) for name in ("make", "seq"))
    assert make is not None
    assert seq is not None
    (folder / "bin").mkdir()
    (folder / "bin" / "seq").symlink_to(seq)
    for name, script in {"python3": BROKEN, **pythons}.items():
        program = folder / "bin" / name.replace("_", ".")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    return subprocess.run(
        [make, "--no-print-directory", "demo", f"VENV={folder}/venv", *given],
        cwd=ROOT,
        env={"PATH": str(folder / "bin")},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3_11": WORKS}, "python3.11"),
        ({"python3_10": WORKS, "python3_11": WORKS, "python3_14": WORKS}, "python3.14"),
        ({"python3_12": WORKS, "python3_13": BROKEN}, "python3.12"),
        ({"python3_11": WORKS, "python3_12": WITHOUT_VENV}, "python3.11"),
        ({"python3_11": BROKEN, "python3_12": WITHOUT_VENV}, "python3.12"),
        ({"python3": WORKS}, "python3"),
    ],
)
def test_make_takes_the_newest_python_that_works(
    pythons: dict[str, str], chosen: str, tmp_path: Path
) -> None:
    done = made(tmp_path, "--dry-run", **pythons)
    assert f"{chosen} -m venv --clear {tmp_path}/venv/demo\n" in done.stdout, done.stderr


def test_make_takes_the_python_that_is_given(tmp_path: Path) -> None:
    done = made(tmp_path, "--dry-run", "PYTHON=/opt/mine", python3_12=WORKS)
    assert f"/opt/mine -m venv --clear {tmp_path}/venv/demo\n" in done.stdout
    assert "python3.12" not in done.stdout


@pytest.mark.parametrize("given", [(), ("PYTHON=python3.10",)], ids=["none", "too old"])
def test_make_without_a_python_says_what_helps(given: tuple[str, ...], tmp_path: Path) -> None:
    old = "exit 1"  # as `sys.exit(sys.version_info < (3, 11))` does
    done = made(tmp_path, *given, python3_10=old)
    name = "python3.10" if given else "python3"
    assert done.returncode == 2
    assert f"needs Python 3.11 or later, which {name} is not: install it, or set PYTHON=" in (
        done.stdout
    )
    assert not (tmp_path / "venv").exists()
