"""Sessions of a shell with the real command, as the files in `transcripts` have them.

A test begins with a line "# ..." and runs in one bash: after "$ " a command, and below it the lines that it
prints. "~ " begins a regular expression of a line, "..." stands for any lines, "2> " begins what standard
error contains, "2>" alone says that it is empty, "2! " begins what the one line of an error contains, and "[3]" is the status, where it is not 0. $TAG is a tag of
the test's own; $ID a detached sandbox that has it; $HERE the folder of the transcripts; `field` prints a Python expression
of a JSON document d.
"""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, environment
from tests.docker_here import require_docker

_FOLDER = Path(__file__).with_name("transcripts")
_PREAMBLE = f"""
HERE='{_FOLDER}'
python() {{ '{sys.executable}' "$@"; }}
sandboxkit() {{ python -m sandboxkit "$@"; }}
field() {{ python -c "import json, sys; d = json.load(sys.stdin); print($1)"; }}
exec </dev/null
"""
_DETACHED = 'ID=$(sandboxkit run -d --lifetime 5m --tag "$TAG")\n'
_END = "<end of step>"


@dataclass
class Step:
    """One command and what it has to print."""

    command: str
    stdout: list[str] = field(default_factory=list)
    stderr: list[tuple[str, str]] = field(default_factory=list)
    status: int = 0

    def check(self, stdout: str, stderr: str, status: int) -> None:
        """Fail unless the command did so."""
        seen = f"{self.command}\n{stdout}{stderr}"
        assert status == self.status, seen
        pattern = "".join(_pattern(line) for line in self.stdout)
        assert re.fullmatch(pattern, stdout), f"{seen}\nis not\n{self.stdout}"
        for mark, part in self.stderr:
            assert part in stderr if part else not stderr, seen
            if mark == "!":
                assert re.fullmatch("sandboxkit: error: .*\n", stderr), seen


def _pattern(line: str) -> str:
    if line == "...":
        return "(?:.*\n)*"
    return f"(?:{line[2:]})\n" if line.startswith("~ ") else re.escape(f"{line}\n")


def read(path: Path) -> dict[str, list[Step]]:
    """The tests of a file, by name."""
    tests: dict[str, list[Step]] = {}
    steps: list[Step] = []
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            steps = tests.setdefault(line[2:], [])
        elif line.startswith("$ "):
            steps.append(Step(line[2:]))
        elif line.startswith("> "):
            steps[-1].command += f"\n{line[2:]}"
        elif line.startswith(("2>", "2!")):
            steps[-1].stderr.append((line[1], line[3:]))
        elif found := re.fullmatch(r"\[(\d+)\]", line):
            steps[-1].status = int(found[1])
        elif line:
            steps[-1].stdout.append(line)
    return tests


TESTS = [
    pytest.param(steps, id=f"{path.stem}-{name.replace(' ', '-')}")
    for path in sorted(_FOLDER.glob("*.txt"))
    for name, steps in read(path).items()
]


@pytest.mark.parametrize("steps", TESTS)
def test_a_session_prints_its_transcript(
    steps: list[Step], cli: Cli, tag: str, tmp_path: Path
) -> None:
    script = _PREAMBLE
    if any("$ID" in step.command for step in steps):
        script += _DETACHED
    for step in steps:
        script += f"{step.command}\necho '{_END}'$?; echo '{_END}' >&2\n"
    if "$SANDBOXKIT_DOCKER_IMAGE" in script:
        require_docker()
    state = {"SANDBOXKIT_STATE_DIR": str(tmp_path / "state")} if "volume" in script else {}
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment({"TAG": tag, "TAG_VALUE": tag.partition(":")[2], **state}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        cli("cleanup", "--tag", tag)
    outputs = re.split(rf"{_END}(\d+)\n", done.stdout)
    errors = done.stderr.split(f"{_END}\n")
    assert len(errors) == len(steps) + 1, done.stderr
    for step, out, error, status in zip(steps, outputs[::2], errors, outputs[1::2], strict=False):
        step.check(out, error, int(status))
