"""`sandboxkit demo`: a hundred MBPP problems, right and wrong, each in a sandbox of its own."""

import argparse
import collections
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from sandboxkit import CommandTimeoutError, Process, SandboxError, Session, wait
from sandboxkit.cli import _mbpp, _options
from sandboxkit.cli._text import safe_line

Kind = Literal["passed", "failed", "timed out", "infra error"]
"""How a program ended."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_SHOWN_ERRORS = 5


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "demo",
        help="run 200 MBPP programs, each in a fresh sandbox",
        description="Run the first 100 problems of MBPP, the reference solution and a broken variant "
        "of each, every program with its tests in a fresh sandbox.",
        epilog="Exits with 0 only if every reference passes and every broken variant fails.",
    )
    _options.provider(parser)
    parser.add_argument("--image", help="an image with python3, where the provider has no default")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N problems")
    parser.add_argument(
        "-c",
        "--concurrency",
        type=int,
        metavar="N",
        default=2 * (os.cpu_count() or 1),
        help="sandboxes at a time (default: twice the cores)",
    )
    parser.add_argument(
        "--timeout",
        type=_options.seconds,
        metavar="TIME",
        default=5.0,
        help="for each program (default: 5s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="the figures as an object, for programs"
    )
    parser.set_defaults(verb=main)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one program ended."""

    program: _mbpp.Program
    kind: Kind
    seconds: float
    """From asking for the sandbox to the program's end."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes and the time they took together."""

    outcomes: list[Outcome]
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether every reference passed and every broken variant failed, and nothing else."""
        return not any(map(unexpected, self.outcomes))

    def count(self, kind: Kind, *, broken: bool) -> int:
        """How many programs of a sort ended in this way."""
        return sum(each.kind == kind and each.program.broken is broken for each in self.outcomes)

    def latency(self, percent: int) -> float:
        """A percentile, in seconds, over the programs that came to their own end."""
        ended = [each.seconds for each in self.outcomes if each.kind in ("passed", "failed")]
        return statistics.quantiles(ended, n=100)[percent - 1] if len(ended) > 1 else 0.0


def main(args: argparse.Namespace) -> int:
    """Run it."""
    programs = _mbpp.programs(args.limit)
    # The few that never end begin early and apart, so that others run while they wait for their end.
    programs.sort(key=lambda each: (each.task_id - _mbpp.HANG_EVERY) % 100)
    with Session(
        args.provider, image=args.image, max_concurrency=args.concurrency, tags=("sandboxkit-demo",)
    ) as session:
        # Says at once, and only once, what would fail everywhere: no backend, no image, no python3.
        session.run(["python3", "-I", "-c", ""], check=True).result()
        if args.json:
            report = run(session, programs, args.concurrency, args.timeout, lambda outcome: None)
            print(json.dumps(_figures(report, session.provider_name), indent=2))
        else:
            from sandboxkit.cli import _demo_screen  # rich, an extra, is needed for tables only

            with _demo_screen.progress(
                len(programs), session.provider_name, args.concurrency
            ) as seen:
                report = run(session, programs, args.concurrency, args.timeout, seen)
            _demo_screen.summary(report, session.provider_name)
    wrong = list(filter(unexpected, report.outcomes))
    for each in wrong[:_SHOWN_ERRORS]:
        sort = "broken variant" if each.program.broken else "reference"
        detail = f": {safe_line(each.detail)}" if each.detail else ""
        print(
            f"sandboxkit: problem {each.program.task_id}, {sort}: {each.kind}{detail}",
            file=sys.stderr,
        )
    if len(wrong) > _SHOWN_ERRORS:
        print(f"sandboxkit: and {len(wrong) - _SHOWN_ERRORS} more", file=sys.stderr)
    return 0 if report.succeeded else 1


def run(
    session: Session,
    programs: Iterable[_mbpp.Program],
    concurrency: int,
    timeout: float,
    seen: Callable[[Outcome], None],
) -> Report:
    """Run every program in a sandbox of its own, at most `concurrency` at a time."""
    started = time.monotonic()
    queue = collections.deque(programs)
    running: dict[Process, tuple[_mbpp.Program, float]] = {}
    outcomes: list[Outcome] = []

    while queue or running:
        while queue and len(running) < concurrency:
            program = queue.popleft()
            began = time.monotonic()
            process = session.run(["python3", "-I", "-c", program.source], timeout=timeout)
            running[process] = (program, began)
        for process in wait(list(running))[0]:
            program, began = running.pop(process)
            kind, detail = _judge(process)
            outcomes.append(Outcome(program, kind, time.monotonic() - began, detail))
            seen(outcomes[-1])
    return Report(outcomes, time.monotonic() - started)


def unexpected(outcome: Outcome) -> bool:
    """Whether a program did not end as it should; a timeout is a broken program's failure too."""
    good = ("failed", "timed out") if outcome.program.broken else ("passed",)
    return outcome.kind not in good


def _judge(process: Process) -> tuple[Kind, str]:
    try:
        result = process.result()
    except CommandTimeoutError:
        return "timed out", ""
    except SandboxError as error:
        return "infra error", str(error)
    if result.returncode == 0:
        return "passed", ""
    return "failed", result.stderr.strip().rpartition("\n")[2]


def _figures(report: Report, provider: str) -> dict[str, object]:
    counts = {
        sort: {
            kind.replace(" ", "_"): report.count(kind, broken=sort == "broken") for kind in KINDS
        }
        for sort in ("reference", "broken")
    }
    return {
        "provider": provider,
        "succeeded": report.succeeded,
        **counts,
        "sandboxes": len(report.outcomes),
        "seconds": round(report.seconds, 3),
        "sandboxes_per_second": round(len(report.outcomes) / report.seconds, 1),
        "latency_p50_ms": round(1000 * report.latency(50), 1),
        "latency_p95_ms": round(1000 * report.latency(95), 1),
    }
