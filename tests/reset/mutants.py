"""Agents whose reset lacks a step: one patched copy of the source, linked once for each of them."""

import os
import re
import runpy
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

AGENT = Path(__file__).resolve().parents[2] / "agent"

_SWITCH = """package main

import "strings"

var mutant string

// without tells whether this agent lacks a step.
func without(step string) bool {
	return strings.Contains("+"+mutant+"+", "+"+step+"+")
}
"""

STEPS = {
    "kill": "sandbox.endProcesses",
    "look at processes": "sandbox.processesLeft",
    "empty": "place.empty",
    "restore": "place.restore",
    "times": "place.restoreTimes",
    "look at places": "place.left",
    "objects": "kernelObjects.remove",
    "look at objects": "kernelObjects.left",
    "look at sockets": "socketCounts.left",
    "look at the agent": "ownState.changed",
    "null": "renewNull",
    "user": "sandbox.nextJob",
    "inventory": "survey.all",
}
"""The function that takes each step: without the step it returns at once, with no findings."""

_WALK = "survey.walk"


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


MUTANTS = [
    Mutant("kill", "a_daemon", felt=False),
    Mutant("kill+look at processes", "a_daemon", felt=True),
    Mutant("empty", "files_everywhere", felt=False),
    Mutant("empty+look at places", "files_everywhere", felt=True),
    Mutant("restore", "attributes_of_places", felt=False),
    Mutant("restore+look at places", "access_lists_of_places", felt=True),
    Mutant("times", "times_of_places", felt=True),
    Mutant("objects", "shared_memory", felt=False),
    Mutant("objects+look at objects", "semaphores", felt=True),
    Mutant("look at sockets", "a_flow_label_that_lingers", felt=True),
    Mutant("look at the agent", "slower_agent", felt=True),
    Mutant("null", "an_open_file_that_all_have", felt=True),
    Mutant("user", "users", felt=True, provider="docker"),
    Mutant("inventory", "files_everywhere", felt=True),
    Mutant("place /tmp", "files_everywhere", felt=True),
    Mutant("place /workspace", "files_everywhere", felt=True),
    Mutant("place /dev/shm", "posix_shared_memory", felt=True),
    Mutant("place /dev/mqueue", "a_message_queue", felt=True),
]


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
    patches[_WALK] = 'without("place " + name)'
    for function, condition in patches.items():
        applied = 0
        for path in folder.glob("reset*.go"):
            text, times = _leave_out(path.read_text(), function, condition)
            path.write_text(text)
            applied += times
        assert applied == 1, f"{function} is {applied} times in the agent"
    (folder / "without.go").write_text(_SWITCH)


def build(folder: Path, without: str, to: Path) -> None:
    """Link an agent that lacks these steps; what is compiled is the same for all."""
    builder = runpy.run_path(str(AGENT / "build.py"))
    environment = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    environment |= {"CGO_ENABLED": "0", "GOWORK": "off"}
    flags = f"-ldflags=-s -w -X 'main.mutant={without}'"
    subprocess.run(
        [builder["find_go"](), "build", "-trimpath", "-buildvcs=false", flags, "-o", str(to), "."],
        cwd=folder,
        env={**os.environ, **environment},
        check=True,
    )
    to.chmod(0o755)
