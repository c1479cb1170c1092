"""Compares the grader `Program` with bare processes, and measures how many cases per second it runs.

A trivial C++ program is compiled and run on 50 cases, alternately by `Program` in reset sandboxes and as
bare processes without isolation. Then a compiled program runs on many cases, 8 of them concurrently.

    python -m benchmarks.programs [--provider local docker ...] [--rounds 5] [--image NAME] [--json]
    python -m benchmarks.programs --cpu  # CPU time of a case, which depends less on other programs
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from sandboxkit.integrations.rewards import Limits, Outcome, Verdict, grading_session
from sandboxkit.integrations.rewards.programs import Program, language_of
from sandboxkit.integrations.rewards.programs._compile import Compiled, build
from sandboxkit.integrations.rewards.programs._evaluate import evaluate
from sandboxkit.integrations.rewards.programs._problem import problem_of
from sandboxkit.integrations.rewards.programs._samples import SAMPLES

IMAGE = "sandboxkit/languages:trixie"
CASES = 50
IN_FLIGHT = 8
LANGUAGE = "cpp17"


def cases(count: int) -> list[dict[str, str]]:
    rows = [range(k, k + 50) for k in range(count)]
    return [{"stdin": f"50\n{' '.join(map(str, r))}\n", "stdout": f"{sum(r)}\n"} for r in rows]


def bare() -> tuple[float, float]:
    """Return the seconds of compiling, and of 50 runs without isolation, one after another."""
    language = language_of(LANGUAGE)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, language.source).write_text(SAMPLES[LANGUAGE])
        begun = time.perf_counter()
        subprocess.run(language.compile, cwd=folder, check=True)
        compiled_at = time.perf_counter()
        for case in cases(CASES):
            done = subprocess.run(
                language.run, cwd=folder, input=case["stdin"], capture_output=True, text=True
            )
            assert done.stdout == case["stdout"]
        return compiled_at - begun, time.perf_counter() - compiled_at


async def graded(provider: str, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return one provider's figures."""
    grader = Program(LANGUAGE, limits=Limits(timeout=2, memory_mb=1024))
    own, plain = list[float](), list[tuple[float, float]]()
    async with grading_session(grader, provider, pool=IN_FLIGHT, **options) as session:
        task = {"cases": cases(CASES)}
        passed(await grader.grade(session, SAMPLES[LANGUAGE], task))  # fills the pool
        for _ in range(rounds):
            await asyncio.sleep(1)  # until the resets have ended
            begun = time.perf_counter()
            passed(await grader.grade(session, SAMPLES[LANGUAGE], task))
            own.append(time.perf_counter() - begun)
            plain.append(await asyncio.to_thread(bare))
        limits = Limits(timeout=30, memory_mb=1024)
        built = await build(session, language_of(LANGUAGE), SAMPLES[LANGUAGE], limits)
        program = built.answer
        assert isinstance(program, Compiled)
        problem = problem_of({"cases": cases(CASES)}, LANGUAGE)
        rates = list[float]()
        for _ in range(rounds):
            begun = time.perf_counter()
            verdicts = await asyncio.gather(
                *(
                    evaluate(session, program, problem, grader.limits, partial=False)
                    for _ in range(IN_FLIGHT)
                )
            )
            rates.append(IN_FLIGHT * CASES / (time.perf_counter() - begun))
            for verdict in verdicts:
                passed(verdict)
    both = [sum(each) for each in plain]
    return {
        "provider": provider,
        "program_s": round(statistics.median(own), 3),
        "bare_s": round(statistics.median(both), 3),
        "of_it_compiling_s": round(statistics.median(each[0] for each in plain), 3),
        "ratio": round(statistics.median(own) / statistics.median(both), 2),
        "cases_a_second": round(statistics.median(rates)),
    }


async def cpu(rounds: int) -> dict[str, Any]:
    """Return the CPU milliseconds of a case on local: of this process, and of everything in the sandboxes.

    The latter includes the start of the sandboxes and one compilation.
    """
    grader = Program(LANGUAGE, limits=Limits(timeout=2, memory_mb=1024))
    count = rounds * IN_FLIGHT * CASES
    inside = used(resource.RUSAGE_CHILDREN)
    async with grading_session(grader, "local", pool=IN_FLIGHT) as session:
        limits = Limits(timeout=30, memory_mb=1024)
        built = await build(session, language_of(LANGUAGE), SAMPLES[LANGUAGE], limits)
        program = built.answer
        assert isinstance(program, Compiled)
        problem = problem_of({"cases": cases(count // IN_FLIGHT)}, LANGUAGE)
        begun = used(resource.RUSAGE_SELF)
        judged = (
            evaluate(session, program, problem, grader.limits, partial=False)
            for _ in range(IN_FLIGHT)
        )
        for verdict in await asyncio.gather(*judged):
            passed(verdict)
        client = used(resource.RUSAGE_SELF) - begun
    inside = used(resource.RUSAGE_CHILDREN) - inside
    return {
        "provider": "local",
        "client_ms": round(client / count * 1e3, 2),
        "sandbox_ms": round(inside / count * 1e3, 2),
    }


def used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def passed(verdict: Verdict) -> None:
    assert verdict.outcome is Outcome.PASSED, verdict


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the grading of programs.")
    parser.add_argument("--provider", nargs="+", default=["local", "docker"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--image", default=IMAGE, help="the image for docker")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU time of a case")
    args = parser.parse_args()
    if args.cpu:
        print(json.dumps(asyncio.run(cpu(args.rounds))))
        return
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", args.image)
    for provider in args.provider:
        options = {} if provider == "local" else {"image": args.image}
        row = asyncio.run(graded(provider, args.rounds, options))
        print(json.dumps(row) if args.json else "  ".join(f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
