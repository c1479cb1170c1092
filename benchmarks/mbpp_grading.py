"""Grade the reference solution of every problem in a file of MBPP, by host-compare.

    python -m benchmarks.mbpp_grading mbpp.jsonl --provider local

Each of a problem's three tests is a separate run. The modes alternate after a part of the problems:
`fresh` sandboxes, fresh ones from a `pool`, and sandboxes that are `reset` between runs, which fork a
warm interpreter. Between them bare processes measure the speed of the machine. `--check` exits with 1
if a solution is refused, a sandbox is left over, or `reset` misses its target.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from sandboxkit.types import Reuse

Problem = dict[str, Any]  # Any: a row of MBPP
MODES: dict[str, tuple[bool, Reuse]] = {
    "fresh": (False, "never"),
    "pool": (True, "never"),
    "reset": (True, "reset"),
}
TARGETS = {"local": 80.0, "docker": 60.0}
"""Minimum problems per second with `reset`, on two idle cores."""
FLOOR = ("/usr/bin/env", "python3", "-I", "-c", "import json")


async def each(items: Iterable[Any], at_a_time: int, work: Callable[[Any], Awaitable[None]]) -> int:
    """Do `work` for all items, `at_a_time` concurrently; return the number of items."""
    queue, done = iter(items), 0

    async def worker() -> None:
        nonlocal done
        for item in queue:
            await work(item)
            done += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(at_a_time):
            group.create_task(worker())
    return done


async def bare(_: object) -> None:
    process = await asyncio.create_subprocess_exec(*FLOOR)
    if await process.wait():
        raise SystemExit(f"{' '.join(FLOOR)} failed")


async def measured(problems: list[Problem], args: argparse.Namespace, tag: str) -> dict[str, Any]:
    """Run all rounds and return the figures."""
    refused: dict[str, str] = {}
    rates: dict[str, list[float]] = {name: [] for name in ("floor", *args.modes)}
    async with AsyncExitStack() as stack:
        sessions: dict[str, Session] = {}
        for mode in args.modes:
            pooled, _ = MODES[mode]
            options: Any = {"pool": args.concurrency} if pooled else {}
            sessions[mode] = await stack.enter_async_context(
                Session(args.provider, max_concurrency=args.concurrency, tags=tag, **options)
            )

        async def graded(mode: str, part: list[Problem]) -> int:
            grader = HostCompare(Limits(timeout=60, reuse=MODES[mode][1]), together=args.together)

            async def grade(problem: Problem) -> None:
                verdict = await grader.grade(sessions[mode], problem["code"], problem)
                if verdict.outcome is not Outcome.PASSED:
                    name = f"{mode}: problem {problem['task_id']}"
                    refused[name] = f"{verdict.outcome}: {verdict.detail}"

            return await each(part, 2 * args.concurrency, grade)

        for mode in args.modes:  # warm-up, which fills the pools
            await graded(mode, problems[: args.concurrency])
        for number in range(args.rounds):
            part = problems[number :: args.rounds]
            for name in rates:
                started = time.monotonic()
                count = (
                    await each(range(40), args.concurrency, bare)
                    if name == "floor"
                    else await graded(name, part)
                )
                rates[name].append(count / (time.monotonic() - started))
                print(f"{number + 1}: {name} {rates[name][-1]:.1f}/s", file=sys.stderr)
    for name, why in refused.items():
        print(f"{name}: {why}", file=sys.stderr)
    return {
        "provider": args.provider,
        "problems": len(problems),
        "refused": len(refused),
        "per_second": {name: round(statistics.median(each), 1) for name, each in rates.items()},
        "load_before": round(args.load, 1),
    }


async def run(problems: list[Problem], args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of `measured`, and the number of sandboxes that are left over."""
    tag = f"mbpp-grading:{uuid.uuid4().hex}"
    figures = await measured(problems, args, tag)
    async with Session(args.provider) as session:
        figures["left"] = len(await session.list(tags=tag))
    return figures


def main() -> int:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="mbpp.jsonl")
    parser.add_argument("--provider", default="local")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, help="only the first problems")
    parser.add_argument("-c", "--concurrency", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--together", action="store_true", help="one run per problem")
    parser.add_argument("--check", action="store_true", help="exit with 1 on a missed target")
    args = parser.parse_args()
    args.load = os.getloadavg()[0]
    problems = [json.loads(line) for line in args.file.read_text("utf-8").splitlines()]
    figures = asyncio.run(run(problems[: args.limit], args))
    print(json.dumps(figures))
    target = TARGETS.get(args.provider, 0.0)
    fast = figures["per_second"].get("reset", target) >= target
    return int(args.check and not (fast and not figures["refused"] and not figures["left"]))


if __name__ == "__main__":
    sys.exit(main())
