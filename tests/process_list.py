"""What `ps` shows, for machines that have none: run COMMAND where the processes are, and parse its output."""

import subprocess
from typing import NamedTuple

_CODE = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as cmdline:
            name, _, rest = stat.read().partition("(")[2].rpartition(")")
            args = cmdline.read().replace(chr(0), " ").strip()
    except OSError:
        continue  # it has ended
    state, parent = rest.split()[:2]
    if int(pid) != os.getpid():
        print(pid, parent, state, name.replace(" ", "_"), args.replace(chr(10), " "))
"""
COMMAND = ("python3", "-I", "-S", "-c", _CODE)


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
