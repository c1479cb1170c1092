"""Grade the reference solution of every problem in a file of MBPP, by host-compare.

    python -m benchmarks.mbpp_grading mbpp.jsonl

Each of a problem's three tests has a fresh sandbox. `--check` exits with 1 when a solution is
refused, a sandbox is left, or 974 problems took more than three minutes, in proportion.
"""

import argparse
import asyncio
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict

TARGET = 180 / 974
"""Seconds a problem."""


async def grade(problems: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, object]:
    """Grade all of them; the figures."""
    tag = f"mbpp-grading:{uuid.uuid4().hex}"
    grader = HostCompare(Limits(timeout=60), together=args.together)
    queue = iter(problems)
    verdicts: dict[int, Verdict] = {}
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    started = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(), disable=args.json) as progress:
        bar = progress.add_task("graded", total=len(problems))
        async with Session(args.provider, max_concurrency=args.concurrency, tags=tag) as session:

            async def work() -> None:
                for problem in queue:
                    verdict = await grader.grade(session, problem["code"], problem)
                    verdicts[problem["task_id"]] = verdict
                    progress.advance(bar)

            async with asyncio.TaskGroup() as group:
                for _ in range(args.concurrency):
                    group.create_task(work())
    seconds = time.monotonic() - started
    async with Session(args.provider) as session:
        left = await session.list(tags=tag)
    refused = {
        number: each for number, each in verdicts.items() if each.outcome is not Outcome.PASSED
    }
    for number, verdict in refused.items():
        print(f"problem {number}: {verdict.outcome}: {verdict.detail}", file=sys.stderr)
    return {
        "problems": len(problems),
        "passed": len(verdicts) - len(refused),
        "left": len(left),
        "seconds": round(seconds, 1),
        "problems_per_second": round(len(problems) / seconds, 2),
        "load_before": round(args.load, 1),
    }


def main() -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="mbpp.jsonl")
    parser.add_argument("--provider", default="local")
    parser.add_argument("--limit", type=int, help="only the first problems")
    parser.add_argument("-c", "--concurrency", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--together", action="store_true", help="one sandbox a problem")
    parser.add_argument("--json", action="store_true", help="no progress bar")
    parser.add_argument("--check", action="store_true", help="exit with 1 on a missed target")
    args = parser.parse_args()
    args.load = os.getloadavg()[0]
    problems = [json.loads(line) for line in args.file.read_text("utf-8").splitlines()]
    figures = asyncio.run(grade(problems[: args.limit], args))
    print(json.dumps(figures))
    good = figures["passed"] == figures["problems"] and not figures["left"]
    in_time = float(str(figures["seconds"])) <= TARGET * len(problems[: args.limit])
    return int(args.check and not (good and in_time))


if __name__ == "__main__":
    sys.exit(main())
