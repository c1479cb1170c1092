"""How long commands take in a reused sandbox, compared with docker-py and with no sandbox at all.

Every comparison runs its two sides in turn, round by round, so that a change of the machine's
load meets both, and reports medians and their ratio.

    python -m benchmarks.exec_latency [--json] [--check] [--quick]
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.comparisons import Comparison
from benchmarks.docker_comparisons import command_latency, file_write, python_throughput
from benchmarks.local_comparisons import fresh_sandbox
from benchmarks.memory import output_memory

IMAGE = "sandboxkit/python:3.11"

COMPARISONS: tuple[Callable[[int], list[Comparison]], ...] = (
    command_latency,
    python_throughput,
    file_write,
    fresh_sandbox,
    output_memory,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare sandboxkit's latencies and memory.")
    parser.add_argument("--json", action="store_true", help="print an object a line")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    args = parser.parse_args()
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", IMAGE)

    missed = []
    if not args.json:
        print(f"{'':54}{'ours':>12}{'other':>12}{'ratio':>9}  {'target':<10}")
    for measure in COMPARISONS:
        for each in measure(4 if args.quick else 20):
            print(json.dumps(asdict(each)) if args.json else each.row(), flush=True)
            missed += [] if each.met else [each.name]
    for name in missed:
        print(f"target missed: {name}", file=sys.stderr)
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
