"""Tries tasks without a policy: with their own solution, as Harbor's oracle does, and with nothing done."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.swe._env import Step, SweEnv
from sandboxkit.integrations.swe._task import Task


@dataclass(frozen=True, slots=True)
class TaskTrial:
    """The rewards of a task's own solution and of no work; None without a solution or a reward."""

    task: str
    oracle: float | None
    nop: float | None
    status: str
    """fine (1 and 0), refused (the solution has no 1), bought (no work has more than 0), unsolved (no solution),
    unread (something is not supported) or unknown (the infrastructure failed)."""
    detail: str = ""
    """The last output of the tests, or of a solution that is refused; or the error."""


def run_oracle(session: Session, task: Task, *, nop: bool = False) -> Operation[Step]:
    """Start the task, run its solution in the agent's sandbox, and grade the result; with `nop` nothing runs there.

    The reward of a sound task is 1, and 0 with `nop`. Raises ConfigurationError for a task without a solution.
    """

    async def run() -> Step:
        async with SweEnv(session, {task.id: task}) as env:
            first = await env.reset(task.id)
            if first.done:
                return first
            return await (env.finish() if nop else env.solve())

    return Operation(run())


async def try_tasks(
    session: Session, tasks: Mapping[str, Task], *, at_once: int = 4
) -> AsyncIterator[TaskTrial]:
    """Yield each task's trial as it ends; `at_once` tasks are tried at the same time."""
    room = asyncio.Semaphore(at_once)

    async def one(task: Task) -> TaskTrial:
        async with room:
            try:
                solved = None if task.solution is None else await run_oracle(session, task)
                return _trial(task.id, solved, await run_oracle(session, task, nop=True))
            except ConfigurationError as error:
                return TaskTrial(task.id, None, None, "unread", str(error))

    trials = [asyncio.create_task(one(task)) for task in tasks.values()]
    try:
        for each in asyncio.as_completed(trials):
            yield await each
    finally:
        for trial in trials:
            trial.cancel()
        await asyncio.gather(*trials, return_exceptions=True)


def _trial(name: str, solved: Step | None, idle: Step) -> TaskTrial:
    oracle, status = None if solved is None else solved.reward, "unsolved"
    blamed = solved if solved is not None and oracle != 1 else idle
    if blamed.reward is None:
        status = "unknown"
    elif blamed is solved:
        status = "refused"
    elif idle.reward:
        status = "bought"
    elif solved is not None:
        status = "fine"
    said = "" if blamed.verdict is None or status == "fine" else blamed.verdict.detail
    return TaskTrial(
        name,
        oracle,
        idle.reward,
        status,
        said or blamed.observation[-300:] if blamed is solved else said,
    )
