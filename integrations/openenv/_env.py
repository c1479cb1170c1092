"""Any OpenEnv environment behind the calls of `SweEnv`: tools, steps, and a verdict at the end."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from openenv.core import GenericEnvClient
from websockets.exceptions import WebSocketException

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._tools import Schema, refusal
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.swe import Step

ACT = "act"
"""The tool that takes an action of an environment without tools of its own."""
_FAILURES = (
    *(OSError, RuntimeError, WebSocketException, httpx.HTTPError),
    *(AttributeError, KeyError, TypeError, ValueError),  # an answer of another shape
)
Score = Callable[[Sequence[float]], float]
"""A function of an episode's rewards that returns its score, from 0 to 1."""


@dataclass
class OpenEnv:
    """One session with an OpenEnv environment; see `as_env`."""

    client: GenericEnvClient
    score: Score
    schemas: Sequence[Schema] = field(default=(), init=False)
    """The tools, in the format of OpenAI's chat completions API; known after `reset`."""
    _acts: bool = field(default=False, init=False)
    _rewards: list[float] = field(default_factory=list, init=False)

    # Any: JSON, of the environment's own kinds, here and below.
    async def reset(self, **options: Any) -> Step:
        """Start an episode; `options` are the environment's, such as `seed` or `task_id`."""
        self._rewards = []
        return await self._step(self._begin(options))

    async def step(self, name: str, arguments: str | Mapping[str, Any]) -> Step:
        """Execute one tool call of the model. A mistake of the model becomes an observation."""
        try:
            given = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
            if name not in [each["function"]["name"] for each in self.schemas]:
                raise ValueError(f"there is no tool {name!r}")
            if not isinstance(given, dict):
                raise ValueError("the arguments are not an object")
        except (ValueError, RecursionError) as error:
            return Step(refusal(error).text, error=True)
        call = {"type": "call_tool", "tool_name": name, "arguments": given}
        return await self._step(self.client.step(given if self._acts else call))

    async def finish(self) -> Step:
        """End the episode, for a model that stops calling tools: by the tool `submit`, if there is one."""
        if "submit" in [each["function"]["name"] for each in self.schemas]:
            return await self.step("submit", {})
        return self._over(Step("the episode is over"))

    async def close(self) -> None:
        """End the session; the server then stops its environment."""
        await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self, options: Mapping[str, Any]) -> Any:
        if not self.schemas:
            self.schemas = [{"type": "function", "function": tool} for tool in await self._tools()]
        return await self.client.reset(**options)

    async def _tools(self) -> list[Schema]:
        try:
            listed = (await self.client.step({"type": "list_tools"})).observation.get("tools")
        except RuntimeError as error:
            if not _is_refused(error):
                raise
            listed = None
        if listed is not None:
            return [{"parameters": tool.pop("input_schema"), **tool} for tool in listed]
        async with httpx.AsyncClient() as http:
            url = re.sub("^ws", "http", str(self.client.base_url))
            action = (await http.get(f"{url}/schema")).raise_for_status().json()["action"]
        self._acts = True
        action["properties"].pop("metadata", None)
        description = action.pop("description", "Take an action.")
        return [{"name": ACT, "description": description, "parameters": action}]

    async def _step(self, call: Awaitable[Any]) -> Step:
        """Wait for the server's answer. What is not an answer to this call means that the infrastructure failed."""
        try:
            answer = await call
        except _FAILURES as error:
            if _is_refused(error):
                return Step(refusal(error).text, error=True)
            return _masked(f"{type(error).__name__}: {error}")
        text, mistake = _read(answer.observation)
        if answer.reward is not None:
            self._rewards.append(float(answer.reward))
        step = Step(text, error=mistake)
        if not answer.done:
            return step
        return self._over(step) if answer.reward is not None else _masked(text)

    def _over(self, step: Step) -> Step:
        score = float(self.score(self._rewards))
        if not 0 <= score <= 1:
            raise ConfigurationError(
                f"the episode's rewards {self._rewards} have the score {score:g}, which is not from 0 to 1: "
                "give as_env(..., score=a function of the rewards)"
            )
        verdict = Verdict(Outcome.PASSED if score == 1 else Outcome.FAILED, score)
        return Step(step.observation, True, score, verdict, step.error)


def as_env(
    client: GenericEnvClient | str, *, score: Score = sum, timeout: float = 600.0
) -> OpenEnv:
    """Return an environment with the calls of `SweEnv`, for `run_episode` and loops of your own.

    `client` is the URL of an OpenEnv server, or a client such as `GenericEnvClient.from_docker_image` returns. The
    model's tools are those that the environment lists; one without tools has the tool `act`, whose arguments are an
    action. At the end `score` turns the episode's rewards into the reward. If the last one is None, or the server
    fails or needs more than `timeout` seconds for an answer, the infrastructure has failed and there is no reward.
    """
    if isinstance(client, str):
        client = GenericEnvClient(base_url=client, message_timeout_s=timeout)
    return OpenEnv(client, score)


@dataclass(frozen=True, slots=True)
class OpenEnvGrader:
    """A grader whose verdict is that of an OpenEnv environment on one call of a tool.

    The submission is the tool's `argument`. A task's `reset`, if it has one, has the options of the environment's reset.
    """

    url: str
    argument: str
    tool: str = ACT
    timeout: float = 600.0

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade in a session of its own with the environment; `session` is not used."""
        async with as_env(self.url, timeout=self.timeout) as env:
            step = await env.reset(**task.get("reset", {}))
            if not step.done:
                step = await env.step(self.tool, {self.argument: submission})
            if not step.done:
                step = await env.finish()
            assert step.verdict is not None
            return step.verdict


def _is_refused(error: Exception) -> bool:
    """Whether the server found that an action is none of this environment's."""
    return "(code: VALIDATION_ERROR)" in str(error)


def _masked(detail: str) -> Step:
    return Step(
        "the environment failed",
        True,
        None,
        Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail[:500]),
    )


def _read(observation: Mapping[str, Any]) -> tuple[str, bool]:
    """Return an observation as text, and whether it is about a mistake of the model."""
    fields = {
        name: value
        for name, value in observation.items()
        if name not in ("metadata", "tool_name") and value is not None
    }
    mistake = bool(fields.get("error")) or bool((observation.get("metadata") or {}).get("error"))
    result = fields.get("result")
    if isinstance(result, dict) and "content" in result:  # of a tool of MCP
        texts = [each["text"] for each in result["content"] if each.get("type") == "text"]
        return "\n".join(texts), mistake or bool(result.get("is_error"))
    if len(fields) == 1 and isinstance(only := next(iter(fields.values())), str):
        return only, mistake
    return json.dumps(fields), mistake
