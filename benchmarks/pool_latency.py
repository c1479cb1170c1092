"""Compares the time to a command's output with a cold start, from a pool, and in reset sandboxes.

All ways alternate, round by round. Before each, the pools are full and idle, so the benchmark measures
a start that finds a sandbox ready, and not how fast a pool is filled.

    python -m benchmarks.pool_latency [--provider local docker ...] [--rounds 40] [--json]
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

from sandboxkit import Interpreter, Process, Session

IMAGE = "sandboxkit/python:3.11"
READY = 2
CODE = "print(1)"
USUAL = ("json", "math", "re", "random", "collections")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare starts with and without a pool.")
    parser.add_argument("--provider", nargs="+", default=["local", "docker"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    args = parser.parse_args()
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", IMAGE)
    for provider in args.provider:
        for name, times, processor in measured(provider, args.rounds):
            low, high = statistics.median(times), statistics.quantiles(times, n=10)[-1]
            row = {
                "provider": provider,
                "start": name,
                "median_ms": round(low * 1e3, 2),
                "p90_ms": round(high * 1e3, 2),
                "client_processor_ms": round(processor * 1e3, 2),
            }
            print(json.dumps(row) if args.json else "  ".join(f"{v!s:>12}" for v in row.values()))


def measured(provider: str, rounds: int) -> list[tuple[str, list[float], float]]:
    """Return each way's name, its seconds in each round, and the client's mean CPU time per run."""
    interpreter = Interpreter(preload=USUAL)
    with (
        Session(provider) as cold,
        Session(provider, pool=READY) as fresh,
        Session(
            provider, pool=READY, reuse="reset", profile="strict", interpreter=interpreter
        ) as kept,
    ):
        bare = f"import {', '.join(USUAL)}\n{CODE}"
        ways: dict[str, tuple[Session, Callable[[], Process]]] = {
            "cold, true": (cold, lambda: cold.run(["true"])),
            "pool, true": (fresh, lambda: fresh.run(["true"])),
            "reset, true": (kept, lambda: kept.run(["true"])),
            "cold, python3": (cold, lambda: cold.run(["python3", "-I", "-c", bare])),
            "pool, python3": (fresh, lambda: fresh.run(["python3", "-I", "-c", bare])),
            "reset, run_python": (kept, lambda: kept.run_python(CODE)),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        processor = dict.fromkeys(ways, 0.0)
        for number in range(rounds + 1):
            for name, (session, start) in ways.items():
                settle(fresh, kept)
                used, began = time.process_time(), time.perf_counter()
                result = start().result(60)
                took = time.perf_counter() - began
                assert result.returncode == 0, result.stderr
                assert result.stdout == ("" if name.endswith("true") else "1\n")
                if session is not cold:
                    settle(session)
                if number:
                    times[name].append(took)
                    processor[name] += (time.process_time() - used) / rounds
    return [(name, times[name], processor[name]) for name in ways]


def settle(*pooled: Session) -> None:
    """Wait until the pools are full and all work of the last round has ended."""
    for session in pooled:
        session.warm().result(60)
        while (stats := session.pool_stats()).making or stats.resetting or stats.taken:
            time.sleep(0.005)


if __name__ == "__main__":
    main()
