"""Agents whose reset lacks a step: one patched copy of the source, linked once for each of them."""

import os
import re
import runpy
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.data_here import beside

AGENT = Path(__file__).resolve().parents[2] / "agent"


_GIVEN = beside(__file__)
STEPS: dict[str, str] = _GIVEN["steps"]
"""The function that takes each step: without the step it returns at once, with no findings."""


@dataclass(frozen=True)
class Mutant:
    """An agent without some steps, and what shows it."""

    without: str
    """Steps with "+" between them; "place PATH" lets the inventory overlook one."""
    shown_by: str
    """An attack, or "users"."""
    felt: bool
    """Whether the next job feels the attack; else the reset's own check reports it."""
    provider: str = "local"


MUTANTS = [Mutant(**given) for given in _GIVEN["mutants"]]


def _leave_out(text: str, function: str, condition: str) -> tuple[str, int]:
    """Let a function of Go's return at once under a condition, and say how often it was found."""
    owner, _, name = function.rpartition(".")
    receiver = rf"\(\w+ \*{owner}\) " if owner else ""
    found = re.compile(rf"^func {receiver}{name}\([^)]*\)( [^{{\n]*|) \{{$", re.MULTILINE)

    def leave(match: re.Match[str]) -> str:
        nothing = " nil" if match[1] else ""
        return f"{match[0]}\n\tif {condition} {{\n\t\treturn{nothing}\n\t}}"

    return found.subn(leave, text)


def prepare(folder: Path) -> None:
    """Put a copy of the agent's source there, in which every step can be left out."""
    shutil.copytree(AGENT, folder, ignore=shutil.ignore_patterns("*_test.go", "loader", "*.py"))
    patches = {function: f'without("{step}")' for step, function in STEPS.items()}
    patches["survey.walk"] = 'without("place " + name)'
    for function, condition in patches.items():
        applied = 0
        for path in folder.glob("reset*.go"):
            text, times = _leave_out(path.read_text(), function, condition)
            path.write_text(text)
            applied += times
        assert applied == 1, f"{function} is {applied} times in the agent"
    (folder / "without.go").write_text(_GIVEN["switch"])


def build(folder: Path, without: str, to: Path) -> None:
    go = runpy.run_path(str(AGENT / "build.py"))["find_go"]()
    environment = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    environment |= {"CGO_ENABLED": "0", "GOWORK": "off"}
    flags = f"-ldflags=-s -w -X 'main.mutant={without}'"
    command = [go, "build", "-trimpath", "-buildvcs=false", flags, "-o", str(to), "."]
    subprocess.run(command, cwd=folder, env={**os.environ, **environment}, check=True)
    to.chmod(0o755)
