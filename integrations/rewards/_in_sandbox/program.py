"""Run a submission that is a program, like `python3 -I PATH`. Runs in a sandbox."""

from __future__ import annotations

import resource
import sys


def main(path: str, soft: int, hard: int) -> None:
    """Run the program in this process, under soft and hard CPU time limits in seconds."""
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    sys.argv = [path]
    names = sys.modules["__main__"].__dict__
    names["__file__"] = path
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), names)
