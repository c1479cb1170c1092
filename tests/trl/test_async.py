"""Environments, tools and rewards as AsyncGRPOTrainer has them: pickled, and called in a spawned worker."""

import asyncio
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations.swe import load_tasks
from sandboxkit.integrations.trl import (
    EnvironmentReward,
    SandboxEnvironments,
    SandboxTools,
    SweEnvironments,
)
from tests.strangers.tasks import write
from tests.trl.graders import Refusing
from tests.trl.tiny import judge, sandboxes_of, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


def in_worker(answers: Any, row: dict[str, Any], factory: Any, functions: Any, tools: Any) -> None:
    """Let TRL's loop of the worker find the tools, and score a group of one rollout, as it does."""
    # tiny.py silences a warning first.
    from accelerate import PartialState
    from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, _AsyncRolloutLoop

    PartialState()  # for TRL's log

    async def run() -> tuple[Any, ...]:
        queues = ("rollout_buffer", "model_version_value", "heartbeat_value", "failed_event")
        unused = (*queues, "exception_info_queue", "metrics_queue")
        loop = _AsyncRolloutLoop(
            model_name="m",
            dataset=[row],
            reward_funcs=functions,
            processing_class=tokenizer(),
            eos_token_ids=[0],
            tools=tools,
            environment_factory=factory,
            **dict.fromkeys(unused),
        )
        environment = loop._environment_pool[None].pop()
        text = await asyncio.to_thread(lambda: environment.reset(**row))
        await asyncio.to_thread(environment.bash, "echo 42 > /workspace/answer")
        reward = await asyncio.to_thread(environment.get_reward)
        group = RolloutGroup(
            prompts=[row["prompt"]],
            reward_kwargs={k: [v] for k, v in row.items() if k != "prompt"},
            completions=[[{"role": "assistant", "content": "done"}]],
            completions_ids=[[1]],
            completions_sequences=[[]],
            tool_call_counts=[1],
            tool_failure_counts=[0],
            model_version=0,
            group_id=0,
            env_rewards=[(type(environment), reward)],
            rollout_rewards=[],
        )
        await loop._score_group(group)
        factory.session.close().result()
        said = await asyncio.to_thread(tools[0], "print(6 * 7)")
        tools[0].__self__.close()
        return text, reward, said, sandboxes_of(factory.session.id), loop.reward_func_names

    answers.put(asyncio.run(run()))


@pytest.mark.parametrize("kind", ["sandbox", "swe"])
def test_trls_worker_opens_its_own_session_and_has_the_rewards(kind: str, tmp_path: Path) -> None:
    files = {"instruction.md": "Make it 42.", "tests/test.sh": 'test "$(cat answer)" = 42'}
    write(tmp_path / "tasks" / "a", **files)
    made: Any = SandboxEnvironments(judge, provider="local")
    if kind == "swe":
        made = SweEnvironments(load_tasks(tmp_path / "tasks"), provider="local")
    prompt = [{"role": "user", "content": "Work."}]
    row = {"prompt": prompt, "want": "42"} | ({"task_id": "a"} if kind == "swe" else {})
    with made, SandboxTools(provider="local") as tools:
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        given = (answers, row, made, [EnvironmentReward()], [tools.python])
        worker = context.Process(target=in_worker, args=given)
        worker.start()
        worker.join(60)  # the answer fits into the pipe
        assert worker.exitcode == 0
        text, reward, said, left, names = answers.get(timeout=10)
    assert text == ("\n\nMake it 42." if kind == "swe" else None)
    assert (reward, said, left) == (1.0, "42\n", [])
    assert names[0] == "environment_reward"


def test_what_cannot_be_pickled_is_named() -> None:
    async def here(*_: Any) -> Any: ...

    with (
        SandboxEnvironments(here, provider="local") as environments,
        pytest.raises(
            ConfigurationError, match=r"SandboxEnvironments cannot .* its judge <function"
        ),
    ):
        pickle.dumps(environments)


def test_get_reward_raises_after_failures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxkit.integrations.trl._rollout._MOST_FAILURES", 2)
    with SandboxEnvironments(judge, provider=Refusing(lambda _: True), get_reward=True) as made:
        rollout: Any = made()
        rollout.reset(want="42")
        assert rollout.get_reward() is None
        with pytest.raises(ProviderUnavailableError, match=r"the last 2 rollouts .* no capacity"):
            rollout.get_reward()
