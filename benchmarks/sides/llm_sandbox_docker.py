"""llm-sandbox on Docker: a session for each command, or commands in one session.

`init` and no network, so that its containers stop at once; without the virtual environment that it
makes in each otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from llm_sandbox import SandboxSession  # type: ignore[import-not-found]  # in its own environment

from benchmarks.sides.serve import IMAGE, LABEL, Work, expect, serve


def _session() -> Any:  # Any: its environment is not the one that is checked
    return SandboxSession(
        lang="python",
        image=IMAGE,
        keep_template=True,
        skip_environment_setup=True,
        runtime_configs={"network_mode": "none", "init": True, "labels": [LABEL]},
    )


def _command(argv: list[str]) -> str:
    return argv[0] if len(argv) == 1 else f"{argv[0]} -c '{argv[-1]}'"


@contextmanager
def fresh(argv: list[str], stdout: str) -> Iterator[Work]:
    """Open a session, run, close it."""

    def one(_: int) -> None:
        with _session() as session:
            done = session.execute_command(_command(argv))
            expect("status and output", (done.exit_code, done.stdout), (0, stdout))

    yield Work(one)


@contextmanager
def living(argv: list[str], stdout: str) -> Iterator[Work]:
    """A command in an open session."""
    with _session() as session:

        def one(_: int) -> None:
            done = session.execute_command(_command(argv))
            expect("status and output", (done.exit_code, done.stdout), (0, stdout))

        yield Work(one)


if __name__ == "__main__":
    serve(version("llm-sandbox"), {"fresh": fresh, "living": living})
