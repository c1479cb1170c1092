"""The examples and the command line run unchanged with SANDBOXKIT_PROVIDER set to a vendor."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXPECTED = ROOT / "tests" / "examples" / "expected"

_NEEDS_ROOT = ("pool",)
"""Examples that need root in the sandbox, which these emulators lack; see tests/e2b/test_strict.py."""

_EACH_TIME = ("quickstart", "parallel_batch")
"""Examples that always run here. The others run here only at night, and always on local."""

Alive = Callable[[], list[str]]

_KILLED = """
import os, signal, sys
from sandboxkit import Session
Session(sys.argv[1]).sandbox().start().result(60)
os.kill(os.getpid(), signal.SIGKILL)
"""

_OPEN = """
import sys
from sandboxkit import Session, _registry
provider = _registry.load(sys.argv[1])
with Session(provider) as session:
    print(session.run(["echo", "hello"]).result(60).stdout, end="")
"""


class Programs:
    """Base class of these tests. Derive a class Test... with the vendor's `name` and an `alive` fixture."""

    name: ClassVar[str]

    @pytest.fixture
    def alive(self) -> Alive:
        """Run the vendor's emulator; return a function that lists its running sandboxes."""
        raise NotImplementedError

    def run(self, *argv: str, stdin: str = "") -> str:
        """Run a program as a user would, with warnings as errors; return its output."""
        done = subprocess.run(
            [sys.executable, "-W", "error", *argv],
            env={**os.environ, "SANDBOXKIT_PROVIDER": self.name},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @pytest.mark.parametrize(
        "path",
        [
            pytest.param(path, marks=() if path.stem in _EACH_TIME else pytest.mark.nightly)
            for path in EXAMPLES
            if path.stem not in ("swap_provider", *_NEEDS_ROOT)
        ],
        ids=lambda path: path.stem,
    )
    def test_an_example_prints_what_it_prints_elsewhere(self, alive: Alive, path: Path) -> None:
        expected = (EXPECTED / f"{path.stem}.txt").read_text().splitlines()
        assert sorted(self.run(str(path)).splitlines()) == sorted(expected)

    def test_swapping_the_provider(self, alive: Alive) -> None:
        path = str(ROOT / "examples" / "swap_provider.py")
        assert self.run(path, "local", self.name).splitlines() == [
            "local: Linux /workspace 0",
            f"{self.name}: Linux /workspace 0",
        ]

    def test_the_command_line(self, alive: Alive) -> None:
        sandboxkit = ("-m", "sandboxkit")
        assert self.run(*sandboxkit, "run", "--", "python3", "-c", "print(6 * 7)") == "42\n"
        assert self.run(*sandboxkit, "run", "-i", "--", "cat", stdin="in") == "in"
        started = self.run(*sandboxkit, "run", "-d", "--", "sh", "-c", "echo up; sleep 1000")
        sandbox_id = started.strip()
        assert alive() == [sandbox_id]
        assert self.run(*sandboxkit, "exec", sandbox_id, "--", "echo", "inside") == "inside\n"
        assert self.run(*sandboxkit, "logs", sandbox_id) == "up\n"
        (listed,) = json.loads(self.run(*sandboxkit, "ls", "-p", self.name, "--json"))
        assert listed["id"] == sandbox_id
        self.run(*sandboxkit, "stop", sandbox_id)
        assert alive() == []

    def test_the_demo(self, alive: Alive) -> None:
        options = ("--json", "--limit", "2", "--timeout", "60s")
        demo = json.loads(self.run("-m", "sandboxkit", "demo", *options))
        assert demo["provider"] == self.name
        assert (demo["reference"]["passed"], demo["broken"]["failed"]) == (2, 2)

    def test_remains_of_a_killed_program_are_removed(self, alive: Alive) -> None:
        subprocess.run([sys.executable, "-c", _KILLED, self.name], timeout=60, check=False)
        assert len(alive()) == 1
        self.run("-m", "sandboxkit", "cleanup", "--orphans")
        assert alive() == []

    def test_an_unclosed_provider_prints_nothing(self, alive: Alive) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "default", "-c", _OPEN, self.name],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
        assert alive() == []
