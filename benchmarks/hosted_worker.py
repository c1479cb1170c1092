"""The worker process of `benchmarks.hosted` for a provider of sandboxkit: runs and times measurements.

It imports nothing from this folder, so that another version of sandboxkit can be on its path.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Protocol

MANY = 30
SMALL = b"0123456789abcdef" * 64
MEGABYTE = SMALL * 1000
FILES = 50
MUCH = 50_000_000


class Side(Protocol):
    """One way to use a vendor's sandboxes. Each call raises if its result is wrong."""

    def true(self) -> None:
        """Run `true` in the existing sandbox."""
        ...

    def first(self) -> Callable[[], object]:
        """Create a sandbox and run `true` in it; return a function that deletes it."""
        ...

    def at_once(self) -> None:
        """Run `true` MANY times concurrently."""
        ...

    def small_file(self) -> None:
        """Write SMALL to a file and read it."""
        ...

    def megabyte(self) -> None:
        """Write MEGABYTE to a file and read it."""
        ...

    def listing(self) -> None:
        """List a folder of FILES files."""
        ...

    def output(self) -> None:
        """Run a command that writes MUCH bytes."""
        ...

    def close(self) -> None:
        """Delete everything."""
        ...


def serve(side: Side, version: str) -> None:
    """Print `version`, then read names of measures from stdin and print the seconds of each.

    After each name the line "undo" arrives, which deletes the sandbox that the measure created.
    """
    print(json.dumps(version), flush=True)
    undo: object = None
    try:
        for line in sys.stdin:
            name = line.strip()
            try:
                if name == "undo":
                    answer: object = None
                    if callable(undo):
                        undo()
                else:
                    measure: Callable[[], object] = getattr(side, name)
                    started = time.perf_counter()
                    undo = measure()
                    answer = time.perf_counter() - started
            except Exception as error:  # noqa: BLE001 - reported in the table
                answer = f"{type(error).__name__}: {error}"[:200]
            print(json.dumps(answer), flush=True)
    finally:
        side.close()


class Ours:
    """A provider of sandboxkit."""

    def __init__(self, provider: str) -> None:
        from sandboxkit import Session  # the version that is on the path

        self._session = Session(provider)
        self._sandbox = self._session.sandbox().start().result(120)
        for number in range(FILES):
            self._sandbox.write_file(f"/workspace/many/{number}", b"").result(120)

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

    def megabyte(self) -> None:
        self._sandbox.write_file("/workspace/much", MEGABYTE).result(120)
        assert self._sandbox.read_file("/workspace/much").result(120) == MEGABYTE

    def listing(self) -> None:
        assert len(self._sandbox.list_dir("/workspace/many").result(120)) == FILES

    def output(self) -> None:
        argv = ["head", "-c", str(MUCH), "/dev/zero"]
        result = self._sandbox.exec(argv, output_limit=None).result(120)
        assert len(result.stdout_bytes) == MUCH

    def close(self) -> None:
        self._session.close().result(120)


if __name__ == "__main__":
    import sandboxkit

    serve(Ours(sys.argv[1]), str(sandboxkit.__file__))
