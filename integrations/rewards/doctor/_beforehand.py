"""A check of some tasks before a training run, with a time limit."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards._verdict import Grader
from sandboxkit.integrations.rewards.doctor._check import check, room_of
from sandboxkit.integrations.rewards.doctor._reference import reference_of
from sandboxkit.integrations.rewards.doctor._report import TaskFinding, TaskReport, summary

CheckTasks = Literal["warn", "raise", "off"]
"""A trainer's action for a task that a cheat passes ("bought") or whose reference fails ("refused")."""

MOST = 8
"""Maximum number of tasks to check."""
_MUTANTS = 8
_SECONDS = 60.0
"""Time limit in seconds for all tasks together. Tasks not done by then are reported as unknown."""
_BAD = ("bought", "refused")


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
    room = room_of(session)

    async def one(number: int, task: Mapping[str, Any], reference: str) -> TaskReport:
        name = str(task.get("task_id") or f"task {number}")
        try:
            async with asyncio.timeout(seconds):
                return await check(
                    session, grader, task, reference, name=name, mutants=_MUTANTS, room=room
                )
        except TimeoutError:
            late = TaskFinding("unknown", f"not checked within {seconds:g} s")
            return TaskReport(name, "unknown", (late,))

    reports = await asyncio.gather(*[one(number, *each) for number, each in enumerate(chosen, 1)])
    if what == "raise" and any(report.status in _BAD for report in reports):
        remedy = "check_tasks='warn' trains on them nevertheless"
        raise ConfigurationError(f"{line_about(reports)} ({remedy})")
    return list(reports)


def line_about(reports: Sequence[TaskReport]) -> str:
    """Return one line with the summary, and the defect of each "bought" or "refused" task."""
    bad = [_line(report) for report in reports if report.status in _BAD]
    return "; ".join([f"tasks checked before training: {summary(reports)}", *bad])


def _chosen(tasks: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    found: dict[str, tuple[Mapping[str, Any], str]] = {}
    for task in tasks:
        reference = reference_of(task)
        if reference is not None:
            found.setdefault(repr(sorted(task.items())), (task, reference))
        if len(found) == MOST:
            break
    return list(found.values())


def _line(report: TaskReport) -> str:
    first = next(each for each in report.findings if each.kind == report.status)
    remedy = f" ({first.remedy})" if first.remedy else ""
    return f"{report.name} is {report.status}: {first.what}{remedy}"
