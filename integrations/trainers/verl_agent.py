"""An agent loop for verl: each trajectory works with the tools of its own environment, and is graded in it.

verl 0.9 makes and releases a `BaseTool` for every single call and never asks it for a reward, so a tool cannot hold
a trajectory's sandbox; an agent loop can.
"""

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Literal

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations._retries import retry
from sandboxkit.integrations.trainers._episodes import (
    AgentTrajectory,
    ClosableEnvironment,
    Episodes,
)

__all__ = ["agent_loop"]


def agent_loop(
    make: Callable[[Session], ClosableEnvironment],
    *,
    on_infra: Literal["raise", "retry"] = "raise",
    retry_seconds: float = 1800.0,
    **options: Any,  # Session's
) -> type[ToolAgentLoop]:
    """Return the class of an agent loop, for a `_target_` in the file of `rollout.agent.agent_loop_config_path`.

    `make(session)` returns a new environment, such as `SweEnv(session, tasks)`. The row's
    `reward_model.ground_truth` has the arguments of its `reset`, such as `{"task_id": ...}`. verl's own loop
    samples the turns and parses the calls, with its settings of `multi_turn`; a turn without a call ends the
    trajectory. The reward is the environment's. After an infrastructure failure the loop raises, which stops
    the training; with "retry" it samples the trajectory again first, for up to `retry_seconds`. verl cannot
    mask a trajectory, so `on_infra="mask"` raises ConfigurationError.
    """
    if on_infra not in ("raise", "retry") or retry_seconds <= 0:
        raise ConfigurationError(
            f"on_infra={on_infra!r}, retry_seconds={retry_seconds!r}: verl cannot leave a trajectory out, because "
            "each needs a number as its reward; give 'raise' or 'retry', and seconds above 0"
        )
    episodes = Episodes(make, trainer="verl", **options)

    class SandboxAgentLoop(ToolAgentLoop):
        _trajectory: AgentTrajectory

        async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
            end = time.monotonic() + retry_seconds

            def again(error: Exception, _: int) -> bool:
                lost = isinstance(error, ProviderUnavailableError)
                return lost and on_infra == "retry" and time.monotonic() < end

            return await retry(lambda: self._once(sampling_params, row), again, first=1.0)

        async def _once(
            self, sampling_params: dict[str, Any], row: Mapping[str, Any]
        ) -> AgentLoopOutput:
            self._trajectory = episodes.begin()
            try:
                truth = row["reward_model"]["ground_truth"]
                prompt = await self._trajectory.reset(truth, row["raw_prompt"])
                self.tool_schemas = list(self._trajectory.env.schemas)
                self.tools = {each["function"]["name"]: _tool(each) for each in self.tool_schemas}
                output = await super().run(sampling_params, **{**row, "raw_prompt": prompt})
                output.reward_score, verdict = await self._trajectory.end()
            finally:
                await self._trajectory.close()
            output.extra_fields["reward_extra_info"] = {
                "acc": float(verdict.score == 1),
                "shared": float(verdict.trust == "shared"),
                "outcome": str(verdict.outcome),
                "detail": verdict.detail,
            }
            return output

        async def _handle_processing_tools_state(self, agent_data: Any) -> AgentState:
            state = await super()._handle_processing_tools_state(agent_data)
            return AgentState.TERMINATED if self._trajectory.done else state

        async def _call_tool(
            self, tool_call: Any, tools_kwargs: Any, agent_data: Any
        ) -> tuple[ToolResponse, None, dict[str, Any]]:
            text = await self._trajectory.call(tool_call.name, tool_call.arguments)
            return ToolResponse(text=text), None, {}

    return SandboxAgentLoop


# Any: a JSON schema, and what verl's parsers of calls read of a tool.
def _tool(schema: dict[str, Any]) -> Any:
    return SimpleNamespace(tool_schema=OpenAIFunctionToolSchema.model_validate(schema))
