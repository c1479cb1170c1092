"""Measures the time of a snapshot, and compares a start from it with a fresh start, for several sizes.

    python -m benchmarks.snapshot_starts local docker

Each line has medians in ms. Run it on an idle machine.
"""

import statistics
import sys
import time

from sandboxkit import Sandbox, Session

SIZES = ((1, 20), (50, 500), (500, 2000))
"""The sizes to measure: megabytes, and number of files."""
ROUNDS = 15
_MAKE = """
import os, sys
size, count = int(sys.argv[1]) * 1_000_000, int(sys.argv[2])
for n in range(count):
    os.makedirs(f"d{n % 20}", exist_ok=True)
    with open(f"d{n % 20}/f{n}", "wb") as file: file.write(os.urandom(size // count))
"""
_COUNT = "find . -type f | wc -l"


def started(sandbox: Sandbox) -> float:
    """Start the sandbox by running a first command; return the time in ms."""
    began = time.perf_counter()
    sandbox.exec(["true"], check=True).result()
    return (time.perf_counter() - began) * 1e3


def starts(session: Session, base: Sandbox, size: int, count: int) -> str:
    """Measure one size and return the line to print."""
    base.exec(["python3", "-c", _MAKE, str(size), str(count)], check=True).result()
    begun = time.perf_counter()
    snapshot = base.snapshot(ttl=600).result()
    capture = (time.perf_counter() - begun) * 1e3
    plain, fork = [], []
    for _ in range(ROUNDS):  # alternately, so that load on the machine affects both alike
        sandbox = session.sandbox()
        plain.append(started(sandbox))
        sandbox.stop().result()
        other = session.sandbox(snapshot=snapshot)
        fork.append(started(other))
        seen = other.exec(["sh", "-c", _COUNT]).result().stdout.strip()
        assert int(seen) == count, seen
        other.stop().result()
    snapshot.delete().result()
    medians = statistics.median(plain), statistics.median(fork)
    return (
        f"{size:4d} MB in {count:4d} files: snapshot {capture:6.0f}, fresh start {medians[0]:4.0f}, start "
        f"from it {medians[1]:4.0f}, ratio {medians[1] / medians[0]:.2f}"
    )


def main() -> None:
    """Measure the providers that the command line names."""
    for name in sys.argv[1:] or ["local"]:
        provider, _, profile = name.partition(":")
        options: dict[str, object] = {"profile": profile} if profile else {}
        if name == "docker:strict":
            options["disk_mb"] = 2000  # for two folders
        with Session(provider, tags=("snapshot-starts",), memory_mb=3000, **options) as session:  # type: ignore[arg-type]  # a profile
            for size, count in SIZES:
                with session.sandbox() as base:
                    print(f"{name}: {starts(session, base, size, count)}", flush=True)


if __name__ == "__main__":
    main()
