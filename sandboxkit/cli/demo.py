"""`sandboxkit demo`: run MBPP problems, correct and broken, each in its own sandbox."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Literal

from sandboxkit import ConfigurationError, SandboxError, SandboxStartError, Session
from sandboxkit.cli import _mbpp, _options
from sandboxkit.cli._demo_run import KINDS, Kind, ProgramResult, Report, run, unexpected
from sandboxkit.cli._text import safe_line

_SHOWN_ERRORS = 5
_PLAIN_STEP = 50


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
    with _session(args) as session:
        if args.json:
            report = run(session, programs, args.concurrency, args.timeout, lambda outcome: None)
            print(json.dumps(_figures(report, session.provider_name), indent=2))
        else:
            with _progress(len(programs), session.provider_name, args.concurrency) as seen:
                report = run(session, programs, args.concurrency, args.timeout, seen)
            _summary(report, session.provider_name)
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


def _session(args: argparse.Namespace) -> Session:
    """Return a session in which sandboxes start, with the strongest isolation that works on this machine.

    Fail early, and once, if nothing can work: no backend, no image, no python3.
    """

    def opened(isolation: Literal["landlock"] | None = None) -> Session:
        session = Session(
            args.provider,
            image=args.image,
            isolation=isolation,
            max_concurrency=args.concurrency,
            tags=("sandboxkit-demo",),
        )
        try:
            session.run(["python3", "-I", "-c", ""], check=True).result()
        except BaseException:
            session.close().result()
            raise
        return session

    try:
        return opened()
    except (SandboxStartError, ConfigurationError) as error:
        if _options.provider_name(args) != "local" or args.image is not None:
            raise
        try:
            session = opened("landlock")
        except SandboxError:
            raise error from None
        print(f"sandboxkit: isolation='landlock', because {error}", file=sys.stderr)
        return session


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


@contextlib.contextmanager
def _progress(
    total: int, provider: str, concurrency: int
) -> Iterator[Callable[[ProgramResult], None]]:
    """Show a progress bar within the context; call the yielded function with each outcome."""
    counts = dict[Kind, int].fromkeys(KINDS, 0)
    where = f"each in a fresh {provider} sandbox, {concurrency} at a time"
    print(f"{total} MBPP programs, half of them broken on purpose, {where}")
    if not sys.stdout.isatty():

        def line(outcome: ProgramResult) -> None:
            counts[outcome.kind] += 1
            done = sum(counts.values())
            if done % _PLAIN_STEP == 0 or done == total:
                print(f"{done}/{total}: {_counted(counts)}", flush=True)

        yield line
        return
    from rich import progress  # only tables and bars need rich, which is an extra

    from sandboxkit.cli import _screen

    bar = progress.Progress(
        progress.BarColumn(bar_width=32),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}"),
        console=_screen.console(),
    )
    task = bar.add_task(_counted(counts), total=total)

    def advance(outcome: ProgramResult) -> None:
        counts[outcome.kind] += 1
        bar.update(task, advance=1, description=_counted(counts))

    with bar:
        yield advance


def _summary(report: Report, provider: str) -> None:
    """Print the results and whether they are as expected."""
    from sandboxkit.cli import _screen

    table = _screen.table(
        "",
        "PASSED",
        "FAILED",
        "TIMED OUT",
        "INFRA ERRORS",
        "EXPECTED",
        right=("PASSED", "FAILED", "TIMED OUT", "INFRA ERRORS"),
    )
    for name, broken, expected in (
        ("references", False, "all pass"),
        ("broken variants", True, "all fail or time out"),
    ):
        good = ("failed", "timed out") if broken else ("passed",)
        cells = []
        for kind in KINDS:
            number = report.count(kind, broken=broken)
            style = "dim" if not number else "green" if kind in good else "red"
            cells.append(_screen.cell(str(number), style))
        table.add_row(name, *cells, _screen.cell(expected, "dim"))
    console = _screen.console()
    console.print(table)
    console.print(
        f"{len(report.outcomes)} {provider} sandboxes in {report.seconds:.1f} s: "
        f"{len(report.outcomes) / report.seconds:.1f} sandboxes/s, latency "
        f"p50 {1000 * report.latency(50):.0f} ms, p95 {1000 * report.latency(95):.0f} ms"
    )
    if report.succeeded:
        console.print(
            "as expected: every reference passes, every broken variant fails", style="green"
        )
    else:
        console.print("NOT as expected: see the programs named below", style="bold red")


def _counted(counts: dict[Kind, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
