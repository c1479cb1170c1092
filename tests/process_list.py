"""What `ps` shows, for machines that have none: run COMMAND where the processes are, and parse its output."""

import subprocess
from typing import NamedTuple

from tests.data_here import beside

COMMAND: tuple[str, ...] = ("python3", "-I", "-S", "-c", beside(__file__)["code"])


class Listed(NamedTuple):
    """A process; a zombie has no arguments."""

    pid: int
    parent: int
    state: str
    name: str
    args: str


def parse(output: bytes) -> list[Listed]:
    """Return the processes but the one that listed them."""
    lines = [line.split(" ", 4) for line in output.decode(errors="replace").splitlines()]
    return [Listed(int(pid), int(parent), *rest) for pid, parent, *rest in lines]


def processes() -> list[Listed]:
    """Return those of this machine."""
    return parse(subprocess.run(COMMAND, stdout=subprocess.PIPE, check=True).stdout)
