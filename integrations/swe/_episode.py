"""The basic agent loop: a policy calls tools until the episode is done."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.swe._env import Step, SweEnv

# Any: messages of OpenAI's chat completions API.
Message = dict[str, Any]
Policy = Callable[[Sequence[Message], Sequence[Message]], Awaitable[Message]]
"""A function of the messages and the tools' schemas that returns the assistant's next message."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout: its messages and its reward."""

    messages: list[Message]
    reward: float | None
    """None if the infrastructure failed: mask the sample."""
    verdict: Verdict


async def run_episode(env: SweEnv, first: Step, policy: Policy) -> Episode:
    """Run a policy until the episode is done; `first` is the step that `env.reset` returned.

    A message without a tool call ends the episode.
    """
    messages: list[Message] = [{"role": "user", "content": first.observation}]
    step = first
    while not step.done:
        message = await policy(messages, env.schemas)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            step = await env.finish()
        for call in calls:
            if step.done:
                text = "the episode was over before this call"
            else:
                function = call["function"]
                step = await env.step(function["name"], function["arguments"])
                text = step.observation
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    assert step.verdict is not None
    return Episode(messages, step.reward, step.verdict)
