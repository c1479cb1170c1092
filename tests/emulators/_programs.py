"""Programs of users at a vendor's emulator: what a killed one leaves, and what an unclosed provider prints."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, ClassVar

_PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())


class Programs:
    """Base class of these tests. Derive a class Test... with the vendor's `name` and a `server` fixture."""

    name: ClassVar[str]

    def run(self, *argv: str) -> tuple[str, str]:
        """Run a program as a user would, and return what it writes to its two streams."""
        done = subprocess.run(
            [sys.executable, "-W", "default", *argv],
            env={**os.environ, "SANDBOXKIT_PROVIDER": self.name},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def test_remains_of_a_killed_program_are_removed(self, server: Any) -> None:
        killed = [sys.executable, "-c", _PROGRAMS["killed"], self.name]
        subprocess.run(killed, timeout=60, check=False)
        (left,) = server.alive
        assert left in self.run("-m", "sandboxkit", "ls", "--json")[0]
        self.run("-m", "sandboxkit", "cleanup", "--orphans")
        assert server.alive == []

    def test_an_unclosed_provider_prints_nothing(self, server: Any) -> None:
        assert self.run("-c", _PROGRAMS["unclosed"], self.name) == ("hello\n", "")
        assert server.alive == []
