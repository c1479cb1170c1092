"""Multi-step rollouts on MBPP: write a solution, run it, read the error, and try again."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Sandbox,
    SandboxError,
    Session,
)
from sandboxkit.integrations._tools import truncate_middle
from sandboxkit.integrations.art._policy import Message, Policy, PolicyError
from sandboxkit.integrations.rewards import Grader, HostCompare, extract_code

SYSTEM = (
    "You write Python functions. Reply with the whole solution in one ```python block. It is "
    "saved as /workspace/solution.py and run with the first test; you see what that prints and "
    "may reply again."
)
_SOLUTION = "/workspace/solution.py"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The messages and the reward of a rollout. The model's turns are stored as choices."""

    messages_and_choices: list[dict[str, Any]]
    """JSON of the OpenAI API (Any): a choice has "finish_reason", a message has "role"."""
    reward: float | None
    """The reward; None if the infrastructure failed: leave the trajectory out of its group."""
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str | int] = field(default_factory=dict)
    detail: str = ""

    def art(self) -> dict[str, Any]:
        """Return the keyword arguments for `art.Trajectory`. Raises ValueError if the reward is None."""
        if self.reward is None:
            raise ValueError(f"a masked trajectory has no reward: {self.detail}")
        return {
            "messages_and_choices": self.messages_and_choices,
            "reward": self.reward,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "logs": [self.detail],
        }


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Runs MBPP rollouts. The reward is the grader's score of the last solution on all tests."""

    grader: Grader = field(default_factory=HostCompare)
    attempts: int = 3
    """Maximum number of solutions per rollout."""
    shown_tests: int = 1
    """Number of tests that are in the prompt and run in the sandbox; the others are hidden."""
    timeout: float = 10.0
    """Time limit in seconds for each run of a solution in its sandbox."""
    observation_limit: int = 2000
    """Maximum characters of output for the model. The middle of a longer output is left out."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.shown_tests < 0 or self.observation_limit < 100:
            raise ConfigurationError(
                f"{self!r}: needs attempts >= 1, shown_tests >= 0, observation_limit >= 100"
            )

    # Any: a task is a row of MBPP with text, test_list and perhaps test_setup_code.
    async def run(self, session: Session, policy: Policy, task: Mapping[str, Any]) -> Trajectory:
        """Run one rollout. A failure of a sandbox or of the endpoint gives it the reward None.

        Raises ConfigurationError.
        """
        tests = list(task["test_list"])[: self.shown_tests]
        setup = str(task.get("test_setup_code", ""))
        prompt = "\n".join([str(task["text"]), "", "It must pass tests such as:", *tests])
        turns: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": prompt},
        ]
        metadata = {"task_id": task.get("task_id", "")}
        try:
            async with session.sandbox() as sandbox:
                code, runs = await self._attempts(sandbox, policy, turns, setup, tests)
        except (SandboxError, PolicyError) as error:
            if isinstance(error, ConfigurationError):
                raise
            return Trajectory(turns, None, {}, metadata, f"{type(error).__name__}: {error}")
        if code is None:
            metrics = {"attempts": float(runs), "passed": 0.0}
            return Trajectory(turns, 0.0, metrics, metadata, "no code in the last reply")
        verdict = await self.grader.grade(session, code, task)
        shared = float(verdict.trust == "shared")
        metrics = {"attempts": float(runs), "passed": float(verdict.score == 1), "shared": shared}
        detail = f"{verdict.outcome}: {verdict.detail}"
        return Trajectory(turns, verdict.reward, metrics, metadata, detail)

    async def run_all(
        self, session: Session, policy: Policy, tasks: Sequence[Mapping[str, Any]], group: int = 1
    ) -> list[list[Trajectory]]:
        """Run `group` rollouts of each task, all concurrently; return one list of trajectories per task.

        The session's `max_concurrency` limits the number of sandboxes.
        """
        async with asyncio.TaskGroup() as running:
            groups = [
                [running.create_task(self.run(session, policy, task)) for _ in range(group)]
                for task in tasks
            ]
        return [[each.result() for each in row] for row in groups]

    async def _attempts(
        self,
        sandbox: Sandbox,
        policy: Policy,
        turns: list[dict[str, Any]],
        setup: str,
        tests: Sequence[str],
    ) -> tuple[str | None, int]:
        """Run attempts until the shown tests pass or `attempts` is reached.

        Returns the code of the last reply and the number of attempts.
        """
        code = None
        for attempt in range(1, self.attempts + 1):
            choice = await policy.complete([_message(turn) for turn in turns])
            turns.append(choice)
            code = extract_code(choice["message"]["content"])
            if code is None:
                passed, seen = False, "There is no ```python block in your reply."
            else:
                passed, seen = await self._try(sandbox, code, setup, tests)
            if passed or attempt == self.attempts:
                return code, attempt
            turns.append({"role": "user", "content": seen})
        raise AssertionError("unreachable")

    async def _try(
        self, sandbox: Sandbox, code: str, setup: str, tests: Sequence[str]
    ) -> tuple[bool, str]:
        await sandbox.write_file(_SOLUTION, code.encode(errors="replace"))
        await sandbox.write_file(
            "/workspace/check.py", "\n".join(["from solution import *", setup, *tests, ""])
        )
        try:
            result = await sandbox.exec(
                # -B: Python would reuse a cached module that changes within a second.
                ["python3", "-B", "check.py"],
                cwd="/workspace",
                timeout=self.timeout,
                output_limit=4 * self.observation_limit,
            )
        except CommandTimeoutError as error:
            return False, f"It ran past {self.timeout:g} s.\n{self._cut(error.result.stderr)}"
        except CommandStartError as error:
            return False, f"It was not started: {self._cut(str(error))}"
        output = self._cut(result.stdout + result.stderr)
        return result.returncode == 0, f"exit status {result.returncode}\n{output}"

    def _cut(self, text: str) -> str:
        return truncate_middle(text, self.observation_limit)


def _message(turn: Mapping[str, Any]) -> Message:
    """Return the role and content of a turn, which is a message or a choice."""
    message = turn.get("message", turn)
    return {"role": message["role"], "content": message["content"]}
