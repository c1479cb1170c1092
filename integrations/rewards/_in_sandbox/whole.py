"""Runs in a sandbox: a submission that is a program, as `python3 -I PATH` would run it."""

from __future__ import annotations

import resource
import sys


def main(path: str, soft: int, hard: int) -> None:
    """Be that program, within its seconds of processor time."""
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    sys.argv = [path]
    names = sys.modules["__main__"].__dict__
    names["__file__"] = path
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), names)
