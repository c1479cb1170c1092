"""A multi-turn environment for SkyRL's gym: the model's tool calls run in one sandbox, and are graded in it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._tools import refusal
from sandboxkit.integrations.grpo.tool_calls import HERMES, format_of
from sandboxkit.integrations.trainers._episodes import ClosableEnvironment, Episodes, Message

__all__ = ["agent_environment"]

_TOOLS = """\
You can call these tools:
{tools}
To call one, write a JSON object between tags, such as
<tool_call>
{{"name": "NAME", "arguments": {{}}}}
</tool_call>
Then wait for its result. A message without a call ends your work."""


def agent_environment(
    make: Callable[[Session], ClosableEnvironment],
    *,
    chat_template: str = "",
    **options: Any,  # Session's
) -> type[BaseTextEnv]:
    """Return the class of an environment, for `skyrl_gym.register(ID, entry_point=...)`.

    `make(session)` returns a new environment, such as `SweEnv(session, tasks)`. The row's
    `reward_spec.ground_truth` has the arguments of its `reset`, such as `{"task_id": ...}`. Each step makes the
    calls of a turn, in the format of the model's `chat_template`; by default it is Hermes'. For Hermes' format
    `init` describes the tools in a system message; for others the row's prompt has to. The episode ends with
    a turn without a call, with the environment's end, or with `generator.max_turns`. `init` and `step` block. They
    raise ProviderUnavailableError after an infrastructure failure, which stops the training.
    """
    episodes, written = Episodes(make, trainer="SkyRL", **options), format_of(chat_template)

    class AgentEnv(BaseTextEnv):
        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            given = extras or {}
            self._truth = (given.get("reward_spec") or {}).get("ground_truth")
            if self._truth is None:
                raise ConfigurationError(
                    "the row has no reward_spec.ground_truth: put the arguments of the environment's reset there"
                )
            self.max_turns = given.get("max_turns", 1 << 30)
            self._trajectory = episodes.begin()
            self._outcome: dict[str, float] = {}

        def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, Any]]:
            with _Closing(self):
                messages = self._trajectory.reset(self._truth, prompt).result()
            if written is HERMES:
                tools = "\n".join(json.dumps(each) for each in self._trajectory.env.schemas)
                system = _TOOLS.format(tools=tools)
                if messages[0]["role"] == "system":
                    system = f"{messages.pop(0)['content']}\n\n{system}"
                messages.insert(0, {"role": "system", "content": system})
            return messages, {}

        def step(self, action: str) -> BaseTextEnvStepOutput:
            self.turns += 1
            with _Closing(self):
                calls = written.find(action)
                answers = [{"role": "user", "content": self._answer(call)} for call in calls]
                if calls and not self._trajectory.done and self.turns < self.max_turns:
                    return BaseTextEnvStepOutput(
                        observations=answers, reward=0.0, done=False, metadata={}
                    )
                reward, verdict = self._trajectory.end().result()
            self.close()
            shared = float(verdict.trust == "shared")
            self._outcome = {"passed": float(verdict.score == 1), "shared": shared}
            metadata = {"outcome": str(verdict.outcome), "detail": verdict.detail}
            return BaseTextEnvStepOutput(
                observations=[], reward=reward, done=True, metadata=metadata
            )

        def close(self) -> None:
            self._trajectory.close().result()

        def get_metrics(self) -> dict[str, float]:
            return self._outcome

        def _answer(self, call: str) -> str:
            try:
                name, arguments = written.read(call)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                return refusal(f"this is no tool call ({type(error).__name__}: {error})").text
            return self._trajectory.call(name, arguments).result()

    return AgentEnv


class _Closing:
    """Closes an environment if the block raises: SkyRL then calls nothing of it any more."""

    def __init__(self, env: BaseTextEnv) -> None:
        self._env = env

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._env.close()
