"""Grade MBPP through `sandboxkit serve` and in process, alternately; then send many concurrent requests.

    python -m benchmarks.serve_load mbpp.jsonl [--rounds 5] [--flood 2000] [--requests 10000]

Each side has its own pool of the same size on the same machine; the client's CPU load slows down the
service's side. `--flood` sends that many requests concurrently. `--requests` sends that many, 64 at a time, and prints the
server's resident memory after each tenth. Both count the responses by status, and separately the requests
without a response and those whose right submission did not get the reward 1.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from sandboxkit.integrations.rewards import HostCompare, Limits, grading_session
from sandboxkit.json_lines import read_json_lines

AT_A_TIME = 64
KEYS = ("test_list", "test_setup_code", "entry_point")
Problem = dict[str, Any]  # Any: a row of MBPP
Grade = Callable[[Problem], Awaitable[float | None]]


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


@contextlib.contextmanager
def served(provider: str, pool: int) -> Iterator[tuple[str, int]]:
    """Run the service until the context ends; yield its URL and process id."""
    command = [sys.executable, "-m", "sandboxkit", "serve", "-p", provider]
    command += ["--port", "0", "--pool", str(pool)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            words = (word for line in server.stderr for word in line.split())
            yield next(word for word in words if word.startswith("http://")), server.pid
        finally:
            server.terminate()
            server.communicate()


def task_of(problem: Problem) -> Problem:
    """Return the part of a row that graders read."""
    return {name: problem[name] for name in KEYS if name in problem}


async def rates(
    problems: list[Problem], sides: dict[str, Grade], rounds: int, at_a_time: int
) -> dict[str, float]:
    """Return the median rate of each side in problems per second."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        part = problems[number::rounds]
        for name, grade in sides.items():

            async def one(problem: Problem, grade: Grade = grade, name: str = name) -> None:
                if await grade(problem) != 1.0:
                    raise SystemExit(f"{name} refused problem {problem['task_id']}")

            started = time.monotonic()
            count = await each(part, at_a_time, one)
            found[name].append(count / (time.monotonic() - started))
            print(f"{number + 1}: {name} {found[name][-1]:.1f}/s", file=sys.stderr)
    return {name: round(statistics.median(each), 1) for name, each in found.items()}


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


async def run(problems: list[Problem], args: argparse.Namespace) -> dict[str, Any]:
    """Measure both sides, then the flood and the long run; return the figures."""
    figures: dict[str, Any] = {"provider": args.provider, "load_before": round(args.load, 1)}
    pool = 2 * (os.cpu_count() or 1)
    grader = HostCompare(Limits(timeout=60))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=AT_A_TIME)
    with served(args.provider, pool) as (url, pid):
        async with (
            grading_session(grader, args.provider, pool=pool) as session,
            httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client,
        ):

            async def in_process(problem: Problem) -> float | None:
                return (await grader.grade(session, problem["code"], task_of(problem))).reward

            async def post(problem: Problem) -> httpx.Response:
                body = {"task": task_of(problem), "submissions": [problem["code"]]}
                return await client.post("/v1/grade", json=body)

            async def over_http(problem: Problem) -> float | None:
                answer = await post(problem)
                answer.raise_for_status()
                return json.loads(answer.text)["reward"]  # type: ignore[no-any-return]

            sides: dict[str, Grade] = {"in process": in_process, "service": over_http}
            await rates(problems[: 2 * pool], sides, 1, 2 * pool)  # warm-up, which fills the pools
            figures["per_second"] = found = await rates(problems, sides, args.rounds, 2 * pool)
            figures["ratio"] = round(found["service"] / found["in process"], 3)
            statuses: Counter[str] = Counter()

            async def count(problem: Problem) -> None:
                try:
                    answer = await post(problem)
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                    return
                right = not answer.is_success or json.loads(answer.text)["reward"] == 1.0
                statuses[str(answer.status_code) if right else "wrong reward"] += 1

            if args.flood:
                await each(
                    (problems[n % len(problems)] for n in range(args.flood)), args.flood, count
                )
                figures["flood"] = dict(statuses)
                statuses.clear()
            if args.requests:
                begun = time.monotonic()
                figures["resident_mb"] = [resident_mb(pid)]
                for _ in range(10):
                    part = (problems[n % len(problems)] for n in range(args.requests // 10))
                    await each(part, AT_A_TIME, count)
                    figures["resident_mb"].append(resident_mb(pid))
                    print(f"{figures['resident_mb'][-1]} MB, {dict(statuses)}", file=sys.stderr)
                figures["seconds"] = round(time.monotonic() - begun)
                figures["statuses"] = dict(statuses)
    return figures


def main() -> None:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="mbpp.jsonl")
    parser.add_argument("--provider", default="local")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flood", type=int, default=0)
    parser.add_argument("--requests", type=int, default=0)
    args = parser.parse_args()
    args.load = os.getloadavg()[0]
    problems = [problem for _, problem in read_json_lines(args.file, "MBPP")]
    print(json.dumps(asyncio.run(run(problems, args))))


if __name__ == "__main__":
    main()
