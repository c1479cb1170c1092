"""The Pythons that are installed on this machine: `python -m tests.pythons_here 3.12` names the oldest
of 3.12 and above, or nothing."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
_NEWEST = (3, 19)
_MANAGED = (
    ("PYENV_ROOT", ".pyenv", "versions/*/bin"),
    ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python", "*/bin"),
)
"""Where installers of many Pythons put them: a variable, a folder at home, and what is below it."""
_ASK = "import ensurepip, sys, venv; print(*sys.version_info[:2])"


@functools.cache
def pythons(oldest: tuple[int, int] = OLDEST) -> dict[tuple[int, int], Path]:
    """One that makes virtual environments for each version, oldest first."""
    found: dict[tuple[int, int], Path] = {}
    for minor in range(oldest[1], _NEWEST[1] + 1):
        for program in _candidates(f"python3.{minor}"):
            if _version(program) == (3, minor):
                found[3, minor] = program
                break
    return found


def _candidates(name: str) -> Iterator[Path]:
    if path := shutil.which(name):
        yield Path(path)
    for variable, home, below in _MANAGED:
        folder = Path(os.environ.get(variable) or Path.home() / home)
        yield from sorted(folder.glob(f"{below}/{name}"), key=_numbers, reverse=True)


def _numbers(path: Path) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", str(path))]


def _version(program: Path) -> tuple[int, int] | None:
    """None for one that does not run, such as a shim of a version that is not chosen."""
    try:
        done = subprocess.run([program, "-I", "-c", _ASK], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


if __name__ == "__main__":
    _, asked = sys.argv[1].split(".")
    for _first in pythons((3, int(asked))).values():
        sys.stdout.write(f"{_first}\n")
        break
