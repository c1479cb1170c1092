"""SWE tasks as an OpenEnv environment, which OpenEnv's own server serves: one episode for each connection."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fastapi import FastAPI
from openenv.core.env_server import (
    CallToolAction,
    CallToolObservation,
    ConcurrencyConfig,
    Environment,
    ListToolsAction,
    ListToolsObservation,
    Observation,
    State,
    Tool,
    create_app,
)

from sandboxkit import Operation, Session
from sandboxkit.integrations._tools import SCHEMAS
from sandboxkit.integrations.swe import Step, SweConfig, SweEnv, Task

T = TypeVar("T")
Action: TypeAlias = CallToolAction | ListToolsAction
Answer: TypeAlias = CallToolObservation | ListToolsObservation
_IDLE = 3600.0
"""Seconds after which a session that was opened over HTTP ends if its client is silent and has no WebSocket."""
_TOOLS = [
    Tool(name=tool["name"], description=tool["description"], input_schema=dict(tool["parameters"]))
    for tool in (schema["function"] for schema in SCHEMAS)
]


class TaskObservation(Observation):
    """The result of `reset`: what the model shall do."""

    instruction: str


class SweTasks(Environment):
    """One client's episodes, one at a time. `bash`, `str_replace_editor` and `submit` are its tools.

    Rewards are None until the episode is done. None when it is done means that the infrastructure failed: mask the
    sample. The `metadata` of an observation has `error`, whether the call was a mistake of the model, and at the end
    the `verdict`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, session: Session, tasks: Mapping[str, Task], config: SweConfig) -> None:
        super().__init__()
        self._tasks, self._env = tasks, SweEnv(session, tasks, config)
        self._state, self._turn = State(), asyncio.Lock()

    async def reset_async(
        self, task_id: str = "", episode_id: str | None = None
    ) -> TaskObservation:
        """Start a task. Raises ConfigurationError for an unknown one."""
        step = await self._alone(partial(self._env.reset, task_id))
        self._state = State(episode_id=episode_id, task_id=task_id)
        return TaskObservation(instruction=step.observation, **_of(step))

    async def step_async(self, action: Action, timeout_s: float | None = None) -> Answer:
        """List the tools, or call one. The config has the time limit of a call, so `timeout_s` has no effect."""
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=_TOOLS)
        step = await self._alone(partial(self._env.step, action.tool_name, action.arguments))
        self._state.step_count += 1
        return CallToolObservation(tool_name=action.tool_name, result=step.observation, **_of(step))

    def reset(self, **options: Any) -> TaskObservation:  # Any: as `reset_async` takes them
        """Do the same as `reset_async`, and block."""
        return Operation(self.reset_async(**options)).result()

    def step(self, action: Action, timeout_s: float | None = None) -> Answer:
        """Do the same as `step_async`, and block."""
        return Operation(self.step_async(action)).result()

    @property
    def state(self) -> State:
        """The episode's id, number of calls and task."""
        return self._state

    def close(self) -> None:
        """Begin to stop the sandbox. The server calls this on its event loop, so it does not wait."""
        self._alone(self._env.close)

    def list_splits(self) -> list[str]:
        """Return the only split: all tasks."""
        return ["train"]

    def list_tasks(self, split: str) -> list[dict[str, str]]:
        """Return what `reset` takes for each task; none for another split."""
        return [{"task_id": name} for name in self._tasks] if split == "train" else []

    def _alone(self, work: Callable[[], Awaitable[T]]) -> Operation[T]:
        """Do `work` once nothing else is in progress: a client may send a call before the last one's answer."""

        async def run() -> T:
            async with self._turn:
                return await work()

        return Operation(run())


# Any: fields of an observation.
def _of(step: Step) -> dict[str, Any]:
    metadata: dict[str, object] = {"error": step.error}
    if step.verdict is not None:
        metadata |= {"verdict": str(step.verdict.outcome), "trust": step.verdict.trust}
    return {"done": step.done, "reward": step.reward, "metadata": metadata}


def swe_app(
    session: Session,
    tasks: Mapping[str, Task],
    config: SweConfig | None = None,
    *,
    max_sessions: int = 64,
) -> FastAPI:
    """Return OpenEnv's server of the tasks, for at most `max_sessions` clients at a time."""
    app: FastAPI = create_app(
        partial(SweTasks, session, tasks, config or SweConfig()),
        CallToolAction,
        CallToolObservation,
        env_name="swe",
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=max_sessions, session_timeout=_IDLE
        ),
        reset_observation_cls=TaskObservation,
        mode="simulation",
    )
    return app
