"""Rollouts against a scripted policy and a real HTTP endpoint."""

import asyncio
import json
import threading
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations import art
from sandboxkit.integrations.art import EndpointPolicy, Message, PolicyError, Rollouts
from tests.art import json_server
from tests.trl.graders import Refusing

POLICIES = tomllib.loads((Path(__file__).parent / "policies.toml").read_text())["policy"]
TESTS = ["assert add(1, 2) == 3", "assert add(5, 5) == 10"]
TASK = {"task_id": 7, "text": "Write a function to add two numbers.", "test_list": TESTS}
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG = "```python\ndef add(a, b):\n    return a - b\n```"


def rollout(
    policy: Any, rollouts: Rollouts | None = None, session: Session | None = None
) -> art.Trajectory:
    async def run() -> art.Trajectory:
        async with session or Session("local") as opened:
            return await (rollouts or Rollouts()).run(opened, policy, TASK)

    return asyncio.run(run())


def script(*replies: str) -> tuple[art.ScriptedPolicy, list[Sequence[Message]]]:
    seen: list[Sequence[Message]] = []

    def reply(messages: Sequence[Message]) -> str:
        seen.append(list(messages))
        return replies[len(seen) - 1]

    return art.ScriptedPolicy(reply), seen


@pytest.mark.parametrize("case", POLICIES, ids=lambda case: case["name"])
def test_a_policy_sees_its_errors_and_is_rewarded(case: dict[str, Any]) -> None:
    known: dict[str, Any] = {"RIGHT": RIGHT, "WRONG": WRONG}
    policy, seen = script(*(known.get(reply, reply) for reply in case["replies"]))
    trajectory = rollout(policy, Rollouts(**case.get("options", {})))
    assert trajectory.reward == case["reward"]
    attempts, passed = float(len(case["replies"])), case["reward"]
    assert trajectory.metrics.pop("shared", 0) == 0
    assert trajectory.metrics == {"attempts": attempts, "passed": passed}
    assert len(seen) == attempts
    for number, text in case.get("told", {}).items():
        observation = seen[int(number)][-1]["content"]
        assert text in observation
        assert len(observation) < case.get("below", 10_000)
    assert case.get("untold", "no such") not in json.dumps(seen)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="attempts"):
        Rollouts(attempts=0)
    with pytest.raises(ConfigurationError, match="base_url"):
        EndpointPolicy("localhost:8000", "tiny")


def test_a_trajectory_has_the_shape_of_art() -> None:
    policy, _ = script(WRONG, RIGHT)
    keywords = rollout(policy).art()
    assert json.loads(json.dumps(keywords)) == keywords
    kinds = ["finish_reason" in each for each in keywords["messages_and_choices"]]
    assert kinds == [False, False, True, False, True]
    assert keywords["reward"] == 1.0
    assert keywords["metadata"] == {"task_id": 7}


def test_a_failure_of_the_infrastructure_is_masked() -> None:
    policy, _ = script(RIGHT)
    trajectory = rollout(policy, session=Session(Refusing(lambda number: True)))
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

    async def run() -> list[list[art.Trajectory]]:
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
