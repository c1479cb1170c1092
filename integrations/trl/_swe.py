"""SWE tasks as environments for TRL, with a shell, an editor and submit; graded in a fresh sandbox."""

import time
from collections.abc import Mapping
from typing import Any

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.swe import Metrics, Step, SweConfig, SweEnv, Task
from sandboxkit.integrations.trl._rollout import Environments, RolloutEnvironment, Trace
from sandboxkit.provider import Provider

_OVER = "error: the episode is over"


class SweEnvironments(Environments):
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
        self.session = Session(provider, max_concurrency=max_concurrency, **options)
        self.tasks = tasks
        self.config = config or SweConfig()
        self.metrics = Metrics()
        self._made = RewardedSweEnvironment if get_reward else SweEnvironment

    def __call__(self) -> "SweEnvironment":
        """Return a new environment; its `reset` starts a sandbox.

        Raises ProviderUnavailableError if the backend is not available.
        """
        self._require_backend()
        return self._made(self)

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
        super().__init__()
        self._owner = owner
        self._env = SweEnv(owner.session, owner.tasks, owner.config, metrics=owner.metrics)
        self._first: Operation[Step] | None = None
        self._last: Step | None = None
        self._submitted = False

    # Any: a row of a user's data set.
    def reset(self, *, task_id: str = "", **row: Any) -> None:
        """Begin a task and stop the previous one's sandbox.

        Raises ConfigurationError for an unknown `task_id`.
        """
        if task_id not in self._owner.tasks:
            raise ConfigurationError(
                f"a row's task_id={task_id!r} is no task; there are {', '.join(self._owner.tasks)}"
            )
        self._last, self._submitted, self._trace = None, False, Trace()
        self._first = Operation(self._begin(self._first, task_id))

    def bash(self, command: str, as_input: bool = False) -> str:
        """
        Run a bash script in a persistent shell: its directory, variables, functions and jobs are kept for the next call. A script that exceeds the time limit keeps running; then an empty command waits for more output, the command C-c stops it, and as_input types the command into it.

        Args:
            command: The script to run.
            as_input: Whether the command is input for the script that is still running.
        """
        return self._tool("bash", command=command, as_input=as_input)

    def str_replace_editor(
        self,
        command: str,
        path: str,
        view_range: list[int] | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
    ) -> str:
        """
        View and edit files.

        Args:
            command: view shows a file with line numbers, or a folder; create writes a whole file; str_replace replaces text that occurs exactly once; insert adds lines after a line; undo_edit undoes the last edit of a file. (choices: ["view", "create", "str_replace", "insert", "undo_edit"])
            path: Absolute path of the file or folder.
            view_range: For view: first and last line, counted from 1; -1 is the last line.
            file_text: For create: the file's whole text.
            old_str: For str_replace: the text to replace.
            new_str: For str_replace: the new text. For insert: the lines to insert.
            insert_line: For insert: the line after which to insert; 0 for the beginning.
        """
        return self._tool(
            "str_replace_editor",
            command=command,
            path=path,
            view_range=view_range,
            file_text=file_text,
            old_str=old_str,
            new_str=new_str,
            insert_line=insert_line,
        )

    def submit(self) -> str:
        """
        Declare that the task is done. Nothing can be changed afterwards.
        """
        # EnvironmentReward grades the whole batch concurrently; grading here would delay the others.
        if self._last is not None or self._submitted:
            return _OVER
        self._submitted = True
        self._trace.add_call("submit", {}, "submitted", False, time.monotonic())
        return "submitted"

    async def _begin(self, before: Operation[Step] | None, task_id: str) -> Step:
        if before is not None:
            before.cancel()
        return await self._env.reset(task_id)

    def _tool(self, name: str, **arguments: Any) -> str:
        if self._first is None:
            raise ConfigurationError("the environment was not reset before a tool was called")
        if self._submitted:
            return _OVER
        begun = time.monotonic()
        observation, error = Operation(self._step(self._first, name, arguments)).result()
        self._trace.add_call(name, arguments, observation, error, begun)
        return observation

    async def _step(
        self, first: Operation[Step], name: str, arguments: dict[str, Any]
    ) -> tuple[str, bool]:
        if self._last is None:
            with self._trace.spend("start"):
                step = await first
            if not step.done:
                with self._trace.spend("tools"):
                    step = await self._env.step(name, arguments)
            self._last = step if step.done else None
            return step.observation, step.error
        return _OVER, True

    def _quiet(self) -> float:
        return self._owner.session.quiet

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
        return self._reward()
