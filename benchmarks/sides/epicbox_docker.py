"""epicbox: a container for each command; it has no sandbox that lives."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import epicbox  # type: ignore[import-not-found]  # in its own environment
import structlog  # type: ignore[import-not-found]  # in its own environment

from benchmarks.sides.serve import IMAGE, Work, expect, serve


@contextmanager
def fresh(argv: list[str], stdout: str) -> Iterator[Work]:
    """`epicbox.run` without a network, 64 MB, one second of processor."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    epicbox.configure(profiles=[epicbox.Profile("bench", IMAGE)])

    def one(_: int) -> None:
        done = epicbox.run("bench", shlex.join(argv), limits={"realtime": 30})
        expect("status and output", (done["exit_code"], done["stdout"]), (0, stdout.encode()))

    yield Work(one)


if __name__ == "__main__":
    serve(version("epicbox"), {"fresh": fresh})
