"""The output of `sandboxkit demo`: a live progress bar, then a table of results."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sandboxkit.cli import _screen
from sandboxkit.cli._demo_run import KINDS, Kind, ProgramResult, Report

_PLAIN_STEP = 50


@contextlib.contextmanager
def progress(
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
    bar = Progress(
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=_screen.console(),
    )
    task = bar.add_task(_counted(counts), total=total)

    def advance(outcome: ProgramResult) -> None:
        counts[outcome.kind] += 1
        bar.update(task, advance=1, description=_counted(counts))

    with bar:
        yield advance


def summary(report: Report, provider: str) -> None:
    """Print the results and whether they are as expected."""
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
