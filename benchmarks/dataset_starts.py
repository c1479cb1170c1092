"""Compares the start of sandboxes that mount a large dataset with that of sandboxes without.

    python -m benchmarks.dataset_starts [--provider local] [--megabytes 300] [--sandboxes 50] [--rounds 5]

Each round starts all sandboxes with the dataset and all without; the order alternates from round to
round. A start ends when a command has run. Prints the seconds of the first snapshot, of the first start
(which fills docker's volume), and the median over the rounds for each side. Removes the dataset afterwards.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from sandboxkit import Dataset, Operation, Session
from sandboxkit._registry import load


def seconds(session: Session, sandboxes: int) -> float:
    """Return the seconds that the session takes to start this many sandboxes and run `true` in each."""
    begun = time.perf_counter()
    processes = [session.run(["true"]) for _ in range(sandboxes)]
    for process in processes:
        assert process.result().returncode == 0
    return time.perf_counter() - begun


def measure(provider: str, megabytes: int, sandboxes: int, rounds: int) -> None:
    """Print the table of one provider."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.environ["SANDBOXKIT_STATE_DIR"] = f"{folder}/state"
        source = Path(folder, "source")
        source.mkdir()
        for number in range(10):
            (source / f"part-{number}").write_bytes(os.urandom((megabytes << 20) // 10))
        begun = time.perf_counter()
        dataset = Dataset(source)
        print(f"{provider}: first snapshot of {megabytes} MB {time.perf_counter() - begun:.2f} s")
        with (
            Session(provider, max_concurrency=8) as without,
            Session(provider, max_concurrency=8, mounts={"/data": dataset}) as mounting,
        ):
            sides = {"without": without, "with": mounting}
            for name, session in sides.items():
                print(f"{provider}: first start {name} the dataset {seconds(session, 1):.2f} s")
            times: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(rounds):
                for name in (*sides,) if number % 2 else (*sides,)[::-1]:
                    times[name].append(seconds(sides[name], sandboxes))
        medians = {name: statistics.median(each) for name, each in times.items()}
        for name, each in times.items():
            rest = " ".join(f"{value:.2f}" for value in each)
            print(f"{provider}: {sandboxes} {name}: median {medians[name]:.2f} s of {rest}")
        print(f"{provider}: with / without = {medians['with'] / medians['without']:.3f}")
        backend = load(provider)
        Operation(backend.remove_unused_datasets()).result()
        Operation(backend.aclose()).result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--provider", default="local")
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--sandboxes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    measure(given.provider, given.megabytes, given.sandboxes, given.rounds)
