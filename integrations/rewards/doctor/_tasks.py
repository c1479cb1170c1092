"""Checks many tasks: all in a file of JSON lines, or some before a training run."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations._outages import require_working
from sandboxkit.integrations.rewards._run import grading_session
from sandboxkit.integrations.rewards._verdict import Grader
from sandboxkit.integrations.rewards.doctor._check import check
from sandboxkit.integrations.rewards.doctor._report import TaskReport, summary
from sandboxkit.json_lines import read_json_lines
from sandboxkit.provider import Provider

REFERENCES = ("reference", "canonical_solution", "code")
"""The columns that are searched for a reference, in this order: our own, HumanEval's and MBPP's."""
_AHEAD = 3
"""Number of tasks checked concurrently: enough that one slow grading does not idle the pool, and few
enough that tasks do not use up each other's time limits."""
_START = 120.0
"""Time limit in seconds for starting the first sandbox."""

CheckTasks = Literal["warn", "raise", "off"]
"""A trainer's action for a task that a cheat passes ("bought") or whose reference fails ("refused")."""

MOST = 8
"""Maximum number of tasks to check."""
_MUTANTS = 8
_SECONDS = 60.0
"""Time limit in seconds for all tasks together. Tasks not done by then are reported as unknown."""
_BAD = ("bought", "refused")


@dataclass(frozen=True, slots=True)
class Entry:
    """A task that was read from a file, with its reference solution."""

    name: str
    task: Mapping[str, Any]  # Any: a row of a user's data set
    reference: str


def read_tasks(path: str | Path, key: str | None = None) -> list[Entry]:
    """Read the tasks from a file of JSON lines. `key` is the reference's column; None: one of REFERENCES.

    Raises ConfigurationError for an unreadable or empty file; for a line that is no JSON object or has
    no reference, the error names the first such line.
    """
    entries = [
        _entry(task, f"tasks {str(path)!r}, line {number}", number, key)
        for number, task in read_json_lines(path, "tasks")
    ]
    if not entries:
        raise ConfigurationError(f"tasks {str(path)!r} has no lines")
    return entries


def check_file(
    entries: Sequence[Entry], grader: Grader, provider: str | Provider | None = None
) -> Iterator[TaskReport]:
    """Check tasks in a new session, and yield the reports in the order of the tasks.

    Raises the provider's error if no sandbox can be started.
    """
    room = asyncio.Semaphore(_AHEAD)

    async def one(each: Entry) -> TaskReport:
        async with room:
            return await check(session, grader, each.task, each.reference, name=each.name)

    with grading_session(grader, provider, tags="tasks-check") as session:
        Operation(require_working(session, _START)).result()
        running = [Operation(one(each)) for each in entries]
        try:
            for operation in running:
                yield operation.result()
        finally:
            for operation in running:
                operation.cancel()


# Any: a task is a row of a user's data set.
def reference_of(task: Mapping[str, Any], key: str | None = None) -> str | None:
    """Return a task's reference solution as a whole program, or None if it has none.

    `key` is its column; None searches `REFERENCES`. A `canonical_solution` that does not define the
    function continues the task's `prefix` or `prompt`.
    """
    for name in (key,) if key else REFERENCES:
        text = task.get(name)
        if not isinstance(text, str) or not text.strip():
            continue
        if name != "canonical_solution" or f"\ndef {task.get('entry_point')}(" in f"\n{text}":
            return text
        for begin in (task.get("prefix"), task.get("prompt")):
            if isinstance(begin, str) and begin:
                return f"{begin}{text}"
    return None


def _entry(task: Any, where: str, number: int, key: str | None) -> Entry:  # Any: JSON
    if not isinstance(task, dict):
        raise ConfigurationError(f"{where}: a {type(task).__name__}, not an object")
    reference = reference_of(task, key)
    if reference is None:
        wanted = key or " or ".join(REFERENCES)
        raise ConfigurationError(
            f"{where}: no reference solution in {wanted}: name its key with --reference"
        )
    name = next((str(task[each]) for each in ("task_id", "id", "name") if task.get(each)), "")
    own = {column: value for column, value in task.items() if column != key}
    return Entry(name or f"line {number}", own, reference)


# Any: tasks are rows of a user's data set.
async def check_beforehand(
    session: Session,
    grader: Grader,
    tasks: Iterable[Mapping[str, Any]],
    what: CheckTasks,
    *,
    seconds: float = _SECONDS,
) -> list[TaskReport]:
    """Check the first 8 distinct tasks that have a reference, within `seconds`; return the reports.

    `what` "off" checks none. "raise" raises ConfigurationError if a cheat passes a task or its
    reference fails. An infrastructure failure is only reported and does not stop a training run.
    """
    chosen = _chosen(tasks) if what != "off" else []
    if not chosen:
        return []
    checks = [
        check(session, grader, task, reference, name=name, mutants=_MUTANTS, seconds=seconds)
        for name, task, reference in chosen
    ]
    reports = await asyncio.gather(*checks)
    if what == "raise" and any(report.status in _BAD for report in reports):
        remedy = "check_tasks='warn' trains on them nevertheless"
        raise ConfigurationError(f"{line_about(reports)} ({remedy})")
    return list(reports)


def line_about(reports: Sequence[TaskReport]) -> str:
    """Return one line with the summary, and the defect of each "bought" or "refused" task."""
    bad = [_line(report) for report in reports if report.status in _BAD]
    return "; ".join([f"tasks checked before training: {summary(reports)}", *bad])


def _chosen(tasks: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any], str]]:
    found: dict[str, tuple[str, Mapping[str, Any], str]] = {}
    for task in tasks:
        if (reference := reference_of(task)) is not None:
            name = str(task.get("task_id") or f"task {len(found) + 1}")
            found.setdefault(repr(sorted(task.items())), (name, task, reference))
        if len(found) == MOST:
            break
    return list(found.values())


def _line(report: TaskReport) -> str:
    first = next(each for each in report.findings if each.kind == report.status)
    remedy = f" ({first.remedy})" if first.remedy else ""
    return f"{report.name} is {report.status}: {first.what}{remedy}"
