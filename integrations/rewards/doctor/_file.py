"""Checks all tasks in a file of JSON lines, in order."""

import collections
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Operation
from sandboxkit.integrations._lines import lines_of
from sandboxkit.integrations._outages import require_working
from sandboxkit.integrations.rewards._sessions import grading_session
from sandboxkit.integrations.rewards._verdict import Grader
from sandboxkit.integrations.rewards.doctor._check import check, room_of
from sandboxkit.integrations.rewards.doctor._reference import REFERENCES, reference_of
from sandboxkit.integrations.rewards.doctor._report import TaskReport
from sandboxkit.provider import Provider

_AHEAD = 3
"""Number of tasks checked concurrently: enough that one slow grading does not idle the pool, and few
enough that tasks do not use up each other's time limits."""
_START = 120.0
"""Time limit in seconds for starting the first sandbox."""


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
    try:
        lines = lines_of(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"tasks {str(path)!r} cannot be read: {error}") from error
    entries = [
        _entry(line, f"tasks {str(path)!r}, line {number}", number, key)
        for number, line in enumerate(lines, 1)
        if line.strip()
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
    with grading_session(grader, provider, tags="tasks-check") as session:
        Operation(require_working(session, _START)).result()
        room = room_of(session)
        waiting = collections.deque(entries)
        running: collections.deque[Operation[TaskReport]] = collections.deque()
        try:
            while waiting or running:
                while waiting and len(running) < _AHEAD:
                    each = waiting.popleft()
                    work = check(
                        session, grader, each.task, each.reference, name=each.name, room=room
                    )
                    running.append(Operation(work))
                yield running[0].result()
                running.popleft()
        finally:
            for operation in running:
                operation.cancel()


def _entry(line: str, where: str, number: int, key: str | None) -> Entry:
    try:
        task = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{where}: not JSON: {error}") from error
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
