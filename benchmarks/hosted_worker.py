"""A provider's side of `benchmarks.hosted`, as a process that does and times what it is told.

It imports nothing of this folder, so that another version of sandboxkit can be on its path.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Protocol

MANY = 30
SMALL = b"0123456789abcdef" * 64
MUCH = 50_000_000


class Side(Protocol):
    """One way to use a vendor's sandboxes; each call raises where the outcome is wrong."""

    def true(self) -> None:
        """Run `true` in the sandbox that there is."""
        ...

    def first(self) -> Callable[[], object]:
        """Create a sandbox and run `true` in it; what is returned deletes it."""
        ...

    def at_once(self) -> None:
        """Run `true` MANY times at once."""
        ...

    def small_file(self) -> None:
        """Write SMALL to a file and read it."""
        ...

    def output(self) -> None:
        """Run a command that writes MUCH."""
        ...

    def close(self) -> None:
        """Delete everything."""
        ...


def serve(side: Side, version: str) -> None:
    """Say `version`, then read lines of a measure and how often, and answer with the seconds."""
    print(json.dumps(version), flush=True)
    try:
        for line in sys.stdin:
            name, times = line.split()
            try:
                answer: object = [_seconds(side, name) for _ in range(int(times))]
            except Exception as error:  # noqa: BLE001 - the table says it
                answer = f"{type(error).__name__}: {error}"[:200]
            print(json.dumps(answer), flush=True)
    finally:
        side.close()


def _seconds(side: Side, name: str) -> float:
    measure: Callable[[], object] = getattr(side, name)
    started = time.perf_counter()
    undo = measure()
    seconds = time.perf_counter() - started
    if callable(undo):
        undo()
    return seconds


class Ours:
    """A provider of sandboxkit."""

    def __init__(self, provider: str) -> None:
        from sandboxkit import Session  # of the version that is on the path

        self._session = Session(provider)
        self._sandbox = self._session.sandbox().start().result(120)

    def true(self) -> None:
        assert self._sandbox.exec(["true"]).result(120).returncode == 0

    def first(self) -> Callable[[], object]:
        sandbox = self._session.sandbox()
        assert sandbox.exec(["true"]).result(120).returncode == 0
        return lambda: sandbox.stop().result(120)

    def at_once(self) -> None:
        processes = [self._sandbox.exec(["true"]) for _ in range(MANY)]
        assert {process.result(120).returncode for process in processes} == {0}

    def small_file(self) -> None:
        self._sandbox.write_file("/workspace/small", SMALL).result(120)
        assert self._sandbox.read_file("/workspace/small").result(120) == SMALL

    def output(self) -> None:
        argv = ["head", "-c", str(MUCH), "/dev/zero"]
        result = self._sandbox.exec(argv, output_limit=None).result(120)
        assert len(result.stdout_bytes) == MUCH

    def close(self) -> None:
        self._session.close().result(120)


if __name__ == "__main__":
    import sandboxkit

    serve(Ours(sys.argv[1]), str(sandboxkit.__file__))
