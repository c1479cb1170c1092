"""OpenEnv environments behind the calls of SweEnv: with tools of MCP, with actions, and our own tasks."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.rewards import Outcome
from sandboxkit.integrations.swe import load_tasks, run_episode
from tests.frameworks_here import framework
from tests.openenv.conftest import serving
from tests.strangers.tasks import write

core = framework("openenv.core")

from fastmcp import FastMCP  # noqa: E402
from openenv.core.env_server import Environment, create_app  # noqa: E402
from openenv.core.env_server.mcp_environment import MCPEnvironment  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402

from sandboxkit.integrations.openenv import as_env, swe_app  # noqa: E402

pytestmark = pytest.mark.anyio


class Guess(Action):
    """Guess a number."""

    number: int


class Hint(Observation):
    hint: str


class Guessing(Environment):
    """Half a point for the first guess at all, the rest for the number; two points for a bet."""

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, number: int = 3
    ) -> Hint:
        self.number, self.guesses = number, 0
        return Hint(hint="Guess.")

    def step(self, action: Guess, timeout_s: float | None = None) -> Hint:
        if action.number < 0:
            raise RuntimeError("the environment is broken")
        self.guesses += 1
        right = action.number == self.number
        reward = {100: 2.0, 50: None}.get(action.number, 0.5 if right or self.guesses == 1 else 0.0)
        done = right or action.number in (100, 50)
        return Hint(hint="right" if right else "no", reward=reward, done=done)

    @property
    def state(self) -> State:
        return State()


class Adding(MCPEnvironment):
    """An environment of MCP tools, without rewards."""

    def __init__(self) -> None:
        server = FastMCP("adding")

        @server.tool()
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        return Observation(metadata={"ready": True})

    def _step_impl(self, action: Action, timeout_s: float | None = None) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()


guessing = partial(create_app, Guessing, Guess, Hint)
adding = partial(create_app, Adding, CallToolAction, CallToolObservation)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(getattr(request, "param", guessing)()) as url:
        yield url


async def test_an_action_is_the_call_of_a_tool(url: str) -> None:
    async with as_env(url) as env:
        first = await env.reset(number=7)
        assert (first.observation, first.done) == ("Guess.", False)
        tool = env.schemas[0]["function"]
        assert (tool["name"], tool["description"]) == ("act", "Guess a number.")
        assert list(tool["parameters"]["properties"]) == ["number"]
        for name, arguments in (
            ("act", {"number": "many"}),
            ("act", {}),
            ("act", "{"),
            ("act", "[1]"),
            ("bash", {"command": "true"}),
        ):
            mistake = await env.step(name, arguments)
            assert (mistake.error, mistake.done) == (True, False)
            assert mistake.observation.startswith("ERROR: ")
        wrong = await env.step("act", '{"number": 1}')
        assert (wrong.observation, wrong.reward, wrong.error) == ("no", None, False)
        end = await env.step("act", {"number": 7})
        assert (end.done, end.reward) == (True, 1.0)
        assert end.verdict is not None
        assert end.verdict.outcome is Outcome.PASSED
        assert (await env.reset()).observation == "Guess."
        await env.step("act", {"number": 1})
        assert (await env.finish()).reward == 0.5


async def test_scores_of_other_sizes_need_a_function(url: str) -> None:
    async with as_env(url) as env:
        await env.reset()
        with pytest.raises(ConfigurationError, match=r"\[2\.0\] have the score 2, .* score="):
            await env.step("act", {"number": 100})
    async with as_env(url, score=lambda rewards: max(rewards) / 2) as env:
        await env.reset()
        assert (await env.step("act", {"number": 100})).reward == 1.0


async def test_a_failure_of_the_environment_masks(url: str) -> None:
    async with as_env(url) as env:
        for number in (50, -1):  # an end without a reward; an exception
            await env.reset()
            end = await env.step("act", {"number": number})
            assert (end.done, end.reward) == (True, None)
            assert end.verdict is not None
            assert end.verdict.outcome is Outcome.INFRA_ERROR
    async with as_env("http://127.0.0.1:9") as env:
        gone = await env.reset()
        assert (gone.done, gone.reward, gone.observation) == (True, None, "the environment failed")
        assert gone.verdict is not None
        assert "ConnectionError" in gone.verdict.detail


@pytest.mark.parametrize("url", [adding], indirect=True)
async def test_tools_of_mcp(url: str) -> None:
    async with as_env(core.GenericEnvClient(base_url=url)) as env:
        assert (await env.reset()).observation == "{}"
        assert [each["function"]["name"] for each in env.schemas] == ["add"]
        assert env.schemas[0]["function"]["parameters"]["required"] == ["a", "b"]
        assert (await env.step("add", {"a": 2, "b": 3})).observation == "5"
        assert (await env.step("add", {"a": "x", "b": 3})).error
        end = await env.finish()
        assert (end.done, end.reward) == (True, 0.0)


async def test_our_tasks_on_another_machine(session: Session, tmp_path: Path) -> None:
    write(tmp_path / "a", **{"tests/test.sh": 'test "$(cat answer)" = right\n'})

    async def policy(messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
        assert [each["function"]["name"] for each in tools] == [
            "bash",
            "str_replace_editor",
            "submit",
        ]
        if len(messages) > 1:
            return {"role": "assistant", "content": "Done."}
        arguments = json.dumps({"command": "echo right > answer"})
        call = {"id": "1", "function": {"name": "bash", "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    with serving(swe_app(session, load_tasks(tmp_path))) as url:
        async with as_env(url) as env:
            episode = await run_episode(env, await env.reset(task_id="a"), policy)
    assert episode.reward == 1.0
    assert episode.messages[0]["content"] == "Do."


def grpo_config(url: str) -> Config:
    grader = "sandboxkit.integrations.openenv:OpenEnvGrader"
    return read(
        None,
        [
            "data.train=rows.jsonl",
            "model.name=none",
            f"grading.grader={grader}",
            f'grading.options={{url = "{url}", argument = "number"}}',
        ],
    )


@pytest.mark.parametrize(
    ("submission", "reward"), [("7", 0.5), ("1", 0.5), ("seven", 0.0), ("-1", None)]
)
async def test_an_environment_as_a_grader(
    url: str, session: Session, submission: str, reward: float | None
) -> None:
    grader = grpo_config(url).grader()
    verdict = await grader.grade(session, submission, {"reset": {"number": 7}})
    assert verdict.reward == reward
