"""Rollouts against a scripted policy and a real HTTP endpoint."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations.art import (
    EndpointPolicy,
    Message,
    Policy,
    PolicyError,
    Rollouts,
    ScriptedPolicy,
    Trajectory,
)
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.art import json_server

TASK = {
    "task_id": 7,
    "text": "Write a function to add two numbers.",
    "test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10"],
}
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG = "```python\ndef add(a, b):\n    return a - b\n```"


def rollout(
    policy: Policy, rollouts: Rollouts | None = None, session: Session | None = None
) -> Trajectory:
    async def run() -> Trajectory:
        async with session or Session("local") as opened:
            return await (rollouts or Rollouts()).run(opened, policy, TASK)

    return asyncio.run(run())


def script(*replies: str) -> tuple[ScriptedPolicy, list[Sequence[Message]]]:
    seen: list[Sequence[Message]] = []

    def reply(messages: Sequence[Message]) -> str:
        seen.append(list(messages))
        return replies[len(seen) - 1]

    return ScriptedPolicy(reply), seen


def test_an_error_is_shown_and_can_be_mended() -> None:
    policy, seen = script("I am not sure.", WRONG, RIGHT)
    trajectory = rollout(policy)
    assert trajectory.reward == 1.0
    assert trajectory.metrics == {"attempts": 3.0, "passed": 1.0}
    assert "no ```python block" in seen[1][-1]["content"]
    assert "AssertionError" in seen[2][-1]["content"]
    assert "add(5, 5)" not in json.dumps(seen)  # the second test is kept back


@pytest.mark.parametrize(
    ("replies", "attempts"),
    [
        ((WRONG, WRONG), 2),
        (("no",), 1),
        (("```python\ndef add(a, b): return 3\n```",), 3),  # as the test that is shown wants it
    ],
    ids=["wrong", "no code", "hard-coded"],
)
def test_what_is_wrong_in_the_end_earns_nothing(replies: tuple[str, ...], attempts: int) -> None:
    policy, seen = script(*replies)
    assert rollout(policy, Rollouts(attempts=attempts)).reward == 0.0
    assert len(seen) == len(replies)


@pytest.mark.parametrize(
    ("code", "options", "told"),
    [
        ("print('a' * 9000 + 'end')", {"observation_limit": 200}, "left out"),
        ("while True: pass", {"timeout": 2}, "ran past 2 s"),
    ],
)
def test_an_observation_is_short_and_says_why(
    code: str, options: dict[str, Any], told: str
) -> None:
    policy, seen = script(f"```python\n{code}\n```", RIGHT)
    assert rollout(policy, Rollouts(**options)).reward == 1.0
    observation = seen[1][-1]["content"]
    assert told in observation
    assert len(observation) < 300


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="attempts"):
        Rollouts(attempts=0)
    with pytest.raises(ConfigurationError, match="base_url"):
        EndpointPolicy("localhost:8000", "tiny")


def test_the_sandbox_keeps_its_state_between_attempts() -> None:
    policy, seen = script(
        "```python\nopen('note', 'w').write('kept')\n```",
        "```python\nprint(open('note').read())\n```",
        RIGHT,
    )
    assert rollout(policy).reward == 1.0
    assert "kept" in seen[2][-1]["content"]


def test_a_trajectory_has_the_shape_of_art() -> None:
    policy, _ = script(WRONG, RIGHT)
    keywords = rollout(policy).art()
    assert json.loads(json.dumps(keywords)) == keywords
    kinds = ["finish_reason" in each for each in keywords["messages_and_choices"]]
    assert kinds == [False, False, True, False, True]
    assert keywords["reward"] == 1.0
    assert keywords["metadata"] == {"task_id": 7}


def test_a_failure_of_the_infrastructure_is_masked() -> None:
    class Broken(LocalProvider):
        async def create(self, spec: SandboxSpec) -> str:
            raise ProviderUnavailableError("no answer")

    policy, _ = script(RIGHT)
    trajectory = rollout(policy, session=Session(Broken()))
    assert trajectory.reward is None
    with pytest.raises(ValueError, match="masked"):
        trajectory.art()


def test_groups_are_made_concurrently_and_in_order() -> None:
    waiting = threading.Barrier(4, timeout=60)

    class Together:
        async def complete(self, messages: Sequence[Message]) -> dict[str, Any]:
            await asyncio.to_thread(waiting.wait)  # broken unless all four are in flight
            message = {"role": "assistant", "content": RIGHT}
            return {"index": 0, "finish_reason": "stop", "message": message}

    async def run() -> list[list[Trajectory]]:
        async with Session("local") as session:
            tasks = [TASK, {**TASK, "task_id": 8}]
            return await Rollouts().run_all(session, Together(), tasks, group=2)

    groups = asyncio.run(run())
    assert [[each.metadata["task_id"] for each in row] for row in groups] == [[7, 7], [8, 8]]
    assert all(each.reward == 1.0 for row in groups for each in row)


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[Any], list[dict[str, Any]]]]:
    """A server's URL, the answers that a test gives it, and what it was asked."""
    replies: list[Any] = []
    requests: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        requests.append({"path": path, **body})
        status, found = replies.pop(0)
        return status, found

    with json_server.serving(answer) as url:
        yield url, replies, requests


def completion(text: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}


def test_a_rollout_against_an_endpoint(endpoint: Any) -> None:
    url, replies, requests = endpoint
    replies += [(503, {}), (200, completion(WRONG)), (200, completion(RIGHT))]
    trajectory = rollout(EndpointPolicy(url, "tiny", options={"temperature": 0.5}))
    assert trajectory.reward == 1.0
    assert [each["path"] for each in requests] == ["/v1/chat/completions"] * 3
    first, _, last = requests
    assert (first["model"], first["temperature"]) == ("tiny", 0.5)
    roles = [each["role"] for each in last["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("reply", [(401, {}), (200, {}), (200, completion(None))])
def test_an_endpoint_that_fails_masks_the_rollout(endpoint: Any, reply: tuple[int, Any]) -> None:
    url, replies, _ = endpoint
    replies.append(reply)
    trajectory = rollout(EndpointPolicy(url, "tiny", retries=0))
    assert trajectory.reward is None
    assert PolicyError.__name__ in trajectory.detail
