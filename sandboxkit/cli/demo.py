"""`sandboxkit demo`: run MBPP problems, correct and broken, each in its own sandbox."""

import argparse
import json
import os
import sys

from sandboxkit import Session
from sandboxkit.cli import _mbpp, _options
from sandboxkit.cli._demo_run import KINDS, Report, run, unexpected
from sandboxkit.cli._text import safe_line

_SHOWN_ERRORS = 5


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
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


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    programs = _mbpp.programs(args.limit)
    # Spread the endless programs over the early part, so that others run during their timeouts.
    programs.sort(key=lambda each: (each.task_id - _mbpp.HANG_EVERY) % 100)
    with Session(
        args.provider, image=args.image, max_concurrency=args.concurrency, tags=("sandboxkit-demo",)
    ) as session:
        # Fail early, and once, if nothing can work: no backend, no image, no python3.
        session.run(["python3", "-I", "-c", ""], check=True).result()
        if args.json:
            report = run(session, programs, args.concurrency, args.timeout, lambda outcome: None)
            print(json.dumps(_figures(report, session.provider_name), indent=2))
        else:
            from sandboxkit.cli import _demo_screen  # only tables need rich, which is an extra

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
