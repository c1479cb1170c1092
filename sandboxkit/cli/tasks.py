"""`sandboxkit tasks`: find tasks of a data set that can be gamed, or that reject correct work."""

import argparse
import dataclasses
import importlib
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from sandboxkit.cli import _options
from sandboxkit.cli._progress import StatusLine
from sandboxkit.cli._text import count, safe_line

_EPILOG = """\
FILE has a task on each line, as JSON, with the keys that HostCompare reads. Each
is graded with its reference solution, five times and more, with cheats that solve
nothing, and with wrong variants of the reference. The reference is in the key `reference`,
`canonical_solution` (which the prompt begins, as in HumanEval) or `code` (MBPP).

  fine      the reference passes, and no cheat does
  bought    a cheat passes: training would find it
  refused   the reference fails, or not always passes: training would get no
            reward for good work
  weak      more than a third of the wrong variants of the reference pass, or the
            tests demand the last digit of a float
  unknown   the infrastructure failed; check it again

The last line counts the tasks whose verdicts are isolated, and those that are
shared, with the reasons: a submission can cheat tests in its own process.

exit codes:
  0    every task is fine or weak
  1    a task is bought or refused
  2    wrong usage, or a file that cannot be read
  125  the infrastructure failed for at least one task

example:
  sandboxkit tasks check train.jsonl --reference solution -p docker
"""
_BAD = ("bought", "refused")
_INFRASTRUCTURE = 125
_MOST = 5
"""The most findings shown of each kind; --json has all of them."""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "tasks",
        help="check the tasks of a data set before training on them",
        description="Look at tasks for graders.",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    part = parts.add_parser(
        "check",
        help="grade references, cheats and mutants",
        description="Report tasks that a cheat passes, that fail their reference, or that test too little.",
        epilog=_EPILOG,
    )
    part.add_argument("file", metavar="FILE", type=Path, help="tasks, as JSON lines")
    part.add_argument("--reference", metavar="KEY", help="the key of the reference solution")
    part.add_argument(
        "--ignore",
        metavar="KEY",
        action="append",
        default=[],
        help="a column that looks like a task's key but is not one; repeatable",
    )
    part.add_argument("--json", action="store_true", help="a report on each line, for programs")
    _options.provider(part)
    part.set_defaults(verb=check)


def check(args: argparse.Namespace) -> int:
    """Run `check`."""
    # Imported by name and lazily: the command line must work without the integrations.
    rewards = importlib.import_module("sandboxkit.integrations.rewards")
    doctor = importlib.import_module("sandboxkit.integrations.rewards.doctor")
    entries = doctor.read_tasks(args.file, args.reference)
    reports: list[Any] = []  # Any: the reports' package is loaded by name
    grader = rewards.HostCompare(ignore=args.ignore)
    total = count(len(entries), "task")
    with StatusLine() as progress:
        progress.show(f"checked 0 of {total}")
        for report in doctor.check_file(entries, grader, args.provider):
            reports.append(report)
            progress.clear()
            if args.json:
                print(json.dumps(dataclasses.asdict(report)), flush=True)
            elif report.status != "fine":
                _show(report)
            progress.show(f"checked {len(reports)} of {total}")
    print(doctor.summary(reports), file=sys.stderr if args.json else sys.stdout)
    statuses = {report.status for report in reports}
    if statuses.intersection(_BAD):
        return 1
    return _INFRASTRUCTURE if "unknown" in statuses else 0


def _show(report: Any) -> None:  # Any: as above
    """Print a task's name and status, then its findings, with each remedy once."""
    facts = [f"{report.level}: {report.why}" if report.why else report.level]
    if report.mutants:
        facts.append(f"{report.survivors} of {count(report.mutants, 'mutant')} passed")
    print(f"{safe_line(report.name)}: {report.status} ({', '.join(facts)})")
    width = min(100, shutil.get_terminal_size().columns)
    shown: list[Any] = []  # Any: as above
    rows: list[tuple[str, str]] = []
    for kind in dict.fromkeys(each.kind for each in report.findings):
        those = [each for each in report.findings if each.kind == kind]
        shown += those[:_MOST]
        rows += [(kind, each.what) for each in those[:_MOST]]
        if len(those) > _MOST:
            rows.append((kind, f"and {len(those) - _MOST} more"))
    rows += [("to do", each) for each in dict.fromkeys(each.remedy for each in shown) if each]
    for kind, text in rows:
        wrapped = textwrap.wrap(safe_line(text), max(20, width - 12)) or [""]
        print(f"  {kind:<8}  {wrapped[0]}")
        for line in wrapped[1:]:
            print(f"{'':12}{line}")
    sys.stdout.flush()
