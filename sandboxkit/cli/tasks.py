"""`sandboxkit tasks`: find tasks of a data set that can be gamed, or that reject correct work."""

import argparse
import asyncio
import dataclasses
import importlib
import json
import shutil
import sys
import textwrap
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from sandboxkit import Session
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
_ORACLE = """\
TASKS is a folder with task folders in Harbor's format, Terminal-Bench's older
one or sandboxkit's own; or one task, a .tar.gz, rows in SWE-bench's format (a
.jsonl, .json or .parquet file), or hf:owner/name. Each task is graded after its
own solution (ORACLE) and after no work (NOP).

  fine      the rewards are 1 and 0
  bought    no work has a reward
  refused   the solution's reward is not 1
  unsolved  there is no solution
  unread    the task has something that is not supported here
  unknown   the infrastructure failed, or the tests leave no reward

The exit codes are those of `tasks check`; a task that is unread gives 1, too.

example:
  sandboxkit tasks oracle tasks/ --limit 20 --allow-network internet -p docker
"""
_BAD = {"bought", "refused", "unread"}
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
    part = parts.add_parser(
        "oracle",
        help="grade the solutions of tasks, and no work",
        description="Report tasks whose own solution fails, or that reward no work.",
        epilog=_ORACLE,
    )
    part.add_argument("source", metavar="TASKS", help="the tasks")
    part.add_argument("--split", metavar="NAME", default="test", help="of a data set's rows")
    part.add_argument("--limit", metavar="N", type=int, help="try the first N tasks")
    part.add_argument("--image", metavar="REF", help="in place of the tasks' images, or default")
    part.add_argument("--in-place", action="store_true", help="run tests in the agent's sandbox")
    part.add_argument(
        "--allow-network",
        metavar="NAME",
        action="append",
        default=[],
        help="a server that tasks may name, or internet for all; repeatable",
    )
    part.add_argument("--json", action="store_true", help="a trial on each line, for programs")
    _options.provider(part)
    part.set_defaults(verb=oracle)


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
    return _status({report.status for report in reports})


def oracle(args: argparse.Namespace) -> int:
    """Run `oracle`."""
    swe, unread = importlib.import_module("sandboxkit.integrations.swe"), dict[str, Any]()
    tasks = swe.load_tasks(
        args.source,
        split=args.split,
        image=args.image,
        in_place=args.in_place or None,
        allow_network=args.allow_network,
        refused=unread,
    )
    tasks, statuses = dict(islice(tasks.items(), args.limit)), Counter[str]()
    width = max(map(len, ("TASK", *tasks, *unread)))

    def show(trial: Any) -> None:
        statuses[trial.status] += 1
        if args.json:
            print(json.dumps(dataclasses.asdict(trial)), flush=True)
            return
        rewards = ("-" if each is None else f"{each:g}" for each in (trial.oracle, trial.nop))
        print(
            f"{safe_line(trial.task):{width}}  {'  '.join(f'{e:>6}' for e in rewards)}  {trial.status}"
        )
        for line in textwrap.wrap(safe_line(trial.detail), 96):
            print(f"    {line}", flush=True)

    async def try_all() -> None:
        async with Session(args.provider, tags=("tasks-oracle",)) as session:
            async for trial in swe.try_tasks(session, tasks):
                show(trial)

    if not args.json:
        print(f"{'TASK':{width}}  ORACLE     NOP  STATUS")
    for name, error in unread.items():
        show(swe.TaskTrial(name, None, None, "unread", str(error)))
    asyncio.run(try_all())
    counts = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
    summary = f"{count(statuses.total(), 'task')}: {counts}"
    print(summary, file=sys.stderr if args.json else sys.stdout)
    return _status(set(statuses))


def _status(statuses: set[str]) -> int:
    return 1 if statuses & _BAD else _INFRASTRUCTURE if "unknown" in statuses else 0


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
