"""SWE tasks as environments for TRL, with a shell, an editor and submit; graded in a fresh sandbox."""

from collections.abc import Mapping
from typing import Any

from sandboxkit import ConfigurationError, Operation
from sandboxkit.integrations._tools import BASH, EDITOR, SUBMIT, ToolResult, refusal
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.swe import Metrics, Step, SweConfig, SweEnv, Task
from sandboxkit.integrations.trl._rollout import (
    Environments,
    RolloutEnvironment,
    Trace,
    tool_method,
)
from sandboxkit.provider import Provider


class SweEnvironments(Environments["SweEnvironment"]):
    """The `environment_factory` of a run on SWE tasks, such as those of `bundled_tasks()`.

        with SweEnvironments(tasks, provider="docker") as environments:
            GRPOTrainer(
                train_dataset=Dataset.from_list(environments.rows()),
                environment_factory=environments,  # or rollout_func=SandboxRollouts(environments)
                reward_funcs=EnvironmentReward(), ...
            ).train()

    A row's `task_id` selects the task of a rollout. `config` has the budgets and penalties; `metrics`
    counts over all episodes. `get_reward` works as in `SandboxEnvironments`. Raises
    ConfigurationError if there are no tasks.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        config: SweConfig | None = None,
        *,
        get_reward: bool = False,
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        if not tasks:
            raise ConfigurationError("there are no tasks")
        self._open(provider, max_concurrency, options)
        self.tasks = tasks
        self.config = config or SweConfig()
        self.metrics = Metrics()
        self._rewarded = RewardedSweEnvironment
        self._made = RewardedSweEnvironment if get_reward else SweEnvironment

    # Any: rows of a data set.
    def rows(self) -> list[dict[str, Any]]:
        """Return rows for a data set: each task's instruction as the prompt, and its `task_id`."""
        return [
            {"prompt": [{"role": "user", "content": task.instruction}], "task_id": name}
            for name, task in self.tasks.items()
        ]


class SweEnvironment(RolloutEnvironment):
    """One rollout of a task. `reset` does not wait for the sandbox; the first tool call does."""

    def __init__(self, owner: SweEnvironments) -> None:
        super().__init__(owner.session)
        self._owner = owner
        self._env = SweEnv(owner.session, owner.tasks, owner.config, metrics=owner.metrics)
        self._first: Operation[Step] | None = None
        self._last: Step | None = None
        self._submitted = False

    # Any: a row of a user's data set.
    def reset(self, *, task_id: str = "", prompt: Any = (), **row: Any) -> str | None:
        """Begin a task and stop the previous one's sandbox.

        Return the task's instruction, for TRL to append, unless the prompt has it already. Raises
        ConfigurationError for an unknown `task_id`.
        """
        if task_id not in self._owner.tasks:
            raise ConfigurationError(
                f"a row's task_id={task_id!r} is no task; there are {', '.join(self._owner.tasks)}"
            )
        self._last, self._submitted, self._trace = None, False, Trace()
        self._first = Operation(self._begin(self._first, task_id))
        instruction = self._owner.tasks[task_id].instruction
        texts = [prompt] if isinstance(prompt, str) else [each.get("content") for each in prompt]
        return None if any(instruction in str(text) for text in texts) else f"\n\n{instruction}"

    bash = tool_method(BASH)
    str_replace_editor = tool_method(EDITOR)
    submit = tool_method(SUBMIT)

    async def _begin(self, before: Operation[Step] | None, task_id: str) -> Step:
        if before is not None:
            before.cancel()
        return await self._env.reset(task_id)

    # Any: arguments written by a model.
    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self._first is None:
            raise ConfigurationError("the environment was not reset before a tool was called")
        if self._submitted or self._last is not None:
            return refusal("the episode is over")
        if name == "submit" and not arguments:
            # EnvironmentReward grades the whole batch concurrently; grading here would delay the others.
            self._submitted = True
            return ToolResult("submitted", submitted=True)
        with self._trace.spend("start"):
            step = await self._first
        if not step.done:
            with self._trace.spend("tools"):
                step = await self._env.step(name, arguments)
        self._last = step if step.done else None
        return ToolResult(step.observation, step.error)

    async def _grade(self) -> tuple[Verdict, float | None]:
        if self._first is None:
            raise ConfigurationError("the environment was not reset before it was graded")
        if self._last is None:
            with self._trace.spend("start"):
                first = await self._first
            with self._trace.spend("grading"):
                if first.done:
                    self._last = first
                elif self._submitted:
                    self._last = await self._env.step("submit", {})
                else:
                    self._last = await self._env.finish()
        assert self._last.verdict is not None
        return self._last.verdict, self._last.reward


class RewardedSweEnvironment(SweEnvironment):
    """An environment with `get_reward`, from which TRL reads the reward."""

    def get_reward(self) -> float | None:
        """Grade the task; return the score minus penalties, or None after an infrastructure failure."""
        return self._owner.note(*Operation(self._grade()).result())
