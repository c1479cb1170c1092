"""A load test at full size: 560 concurrent sandboxes, 20,000 commands, 1 GiB and 50,000 files.

    python -m benchmarks.full_size local=500 docker=60 [--execs 20000] [--megabytes 1024] [--files 50000]

The sandboxes of all providers exist at the same time while the commands run; their outputs are checked.
Then one folder with many bytes and one with many files are uploaded to one sandbox of each provider,
downloaded again and compared. Prints a row for each step; fails if anything differs.
"""

import argparse
import hashlib
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sandboxkit import Process, Sandbox, Session

TAG = "full-size"
IN_FLIGHT = 64
PIECES = 16
FILE_BYTES = 100


@contextmanager
def step(provider: str, what: str) -> Iterator[None]:
    """Print how long the `with` block took."""
    began = time.monotonic()
    yield
    sys.stdout.write(f"| {provider} | {what} | {time.monotonic() - began:.1f} s |\n")
    sys.stdout.flush()


def execute(sandboxes: list[Sandbox], count: int) -> None:
    """Run `count` commands, distributed over the sandboxes, with limited concurrency; check the outputs."""
    running: deque[tuple[int, Process]] = deque()

    def finish() -> None:
        number, process = running.popleft()
        result = process.result(300)
        assert (result.returncode, result.stdout) == (0, f"{number}\n"), result

    for number in range(count):
        if len(running) == IN_FLIGHT:
            finish()
        running.append((number, sandboxes[number % len(sandboxes)].exec(["echo", str(number)])))
    while running:
        finish()


def fill(folder: Path, files: int, size: int) -> None:
    """Write `files` files of `size` bytes, a thousand in each folder."""
    chance = random.Random(files)
    for number in range(files):
        path = folder / str(number // 1000) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))


def digest(folder: Path) -> str:
    """Return a digest of the names and contents of a folder's files."""
    found = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        found.update(f"{path.relative_to(folder)} ".encode())
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def both_ways(sandbox: Sandbox, what: str, source: Path, scratch: Path) -> None:
    """Upload the folder `source`, download it to `scratch`, and compare the two."""
    name = sandbox.provider_name
    with step(name, f"{what} up"):
        sandbox.upload(source, "/workspace/there").result(1800)
    with step(name, f"{what} down"):
        sandbox.download("/workspace/there", scratch / "back").result(1800)
    assert digest(source) == digest(scratch / "back"), what


def work(wanted: dict[str, int], execs: int, megabytes: int, files: int, folder: Path) -> None:
    """Run all steps; the last one closes the sessions."""
    everything = sum(wanted.values())
    with ExitStack() as stack:
        alive: dict[str, list[Sandbox]] = {}
        roomy: list[Sandbox] = []
        for name, count in wanted.items():
            session = stack.enter_context(Session(name, tags=TAG, lifetime=7200))
            # Docker's root has no limit; the files of a local sandbox are in memory.
            roomy.append(
                session.sandbox(disk_mb=2 * megabytes, memory_mb=4 * megabytes)
                if name == "local"
                else session.sandbox()
            )
            with step(name, f"{count} sandboxes started"):
                alive[name] = [session.sandbox() for _ in range(count)]
                for start in [sandbox.start() for sandbox in alive[name]]:
                    start.result(1800)
        for name, sandboxes in alive.items():
            share = execs * len(sandboxes) // everything
            with step(name, f"{share} commands, with {everything} sandboxes alive"):
                execute(sandboxes, share)
        large, many = folder / "large", folder / "many"
        fill(large, PIECES, megabytes * (1 << 20) // PIECES)
        fill(many, files, FILE_BYTES)
        for sandbox in roomy:
            for what, source in ((f"{megabytes} MiB", large), (f"{files} files", many)):
                with tempfile.TemporaryDirectory() as scratch:
                    both_ways(sandbox, what, source, Path(scratch))
                sandbox.remove("/workspace/there", recursive=True).result(300)
        began = time.monotonic()
    sys.stdout.write(
        f"| all | {everything} sandboxes closed | {time.monotonic() - began:.1f} s |\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Run everything at full size, once.")
    parser.add_argument("sandboxes", nargs="+", help="provider=count")
    parser.add_argument("--execs", type=int, default=20_000)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--files", type=int, default=50_000)
    args = parser.parse_args()
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", "sandboxkit/python:3.11")
    pairs = (each.partition("=") for each in args.sandboxes)
    wanted = {name: int(count) for name, _, count in pairs}
    with tempfile.TemporaryDirectory() as folder:
        work(wanted, args.execs, args.megabytes, args.files, Path(folder))
    for name in wanted:
        with Session(name) as after:
            assert after.list(TAG).result(60) == [], name


if __name__ == "__main__":
    main()
