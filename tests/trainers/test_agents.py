"""Trajectories of many turns in verl's own agent loop and in SkyRL's gym, on one task, with scripted models."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations.swe import SweConfig, SweEnv, Task, load_tasks
from sandboxkit.integrations.trainers._episodes import Episodes
from tests.frameworks_here import framework
from tests.strangers.tasks import write
from tests.trl.graders import Refusing
from tests.trl.tiny import call, sandboxes_of, tokenizer

pytestmark = [  # the frameworks' own, when they are imported
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

Turns = tuple[str, ...]
Run = Callable[[Any, Turns], tuple[float, str]]
"""Runs a trajectory in an adapter's class, and returns its reward and all that the model saw."""

PROMPT = [{"role": "user", "content": "Work."}]
RIGHT = call("bash", command="echo right > answer")
TURNS: dict[str, tuple[float, Turns, str]] = {
    "submitted": (
        1.0,
        (RIGHT, call("bash", command="cd /; pwd; ls -d tmp"), call("submit")),
        "tmp",
    ),
    "many calls in a turn": (
        1.0,
        (f"{RIGHT}\n{call('bash', command='cat answer')}", "done"),
        "right",
    ),
    "no call": (0.0, ("I am done",), "Make it right."),
    "mistakes": (1.0, (call("nothing", x="1"), RIGHT, call("submit")), "there is no tool"),
    "ended by the environment": (
        1.0,
        (RIGHT + call("submit") + call("bash", command="false"),),
        "",
    ),
}


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Task]:
    files = {"instruction.md": "Make it right.", "tests/test.sh": 'test "$(cat answer)" = right'}
    write(tmp_path / "tasks" / "a", **files)
    return load_tasks(tmp_path / "tasks")


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Episodes]]:
    """Close the sessions that adapters opened, after a look for sandboxes that they left."""
    made, begin = list[Episodes](), Episodes.__init__

    def recorded(self: Episodes, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Episodes, "__init__", recorded)
    yield made
    for each in made:
        if each._session is not None:
            assert sandboxes_of(each._session.id) == []
        each.close()


def run_verl(adapter: Any, turns: Turns) -> tuple[float, str]:
    """Let verl make the loop, as its worker does, and run a row."""
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.workers.rollout.replica import TokenOutput

    globals()["VerlLoop"], words, said, seen = adapter, tokenizer(), list(turns), [""]

    async def generate(prompt_ids: list[int], **_: Any) -> Any:
        seen.append(words.decode(prompt_ids))
        return TokenOutput(token_ids=words(f"{said.pop(0)}<|im_end|>")["input_ids"])

    multi_turn = {
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 4,
        "max_tool_response_length": 10_000,
        "tool_response_truncate_side": "middle",
        "format": "hermes",
    }
    rollout = {
        "multi_turn": multi_turn,
        "prompt_length": 10_000,
        "response_length": 10_000,
        "full_determinism": False,
    }
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})

    async def run() -> float:
        loop = hydra.utils.instantiate(
            {"_target_": f"{__name__}.VerlLoop"},
            trainer_config=DictConfigWrap(config),
            server_manager=SimpleNamespace(generate=generate),
            tokenizer=words,
            processor=None,
            hf_model_type="qwen3",
            dataset_cls=framework("verl.utils.dataset.rl_dataset").RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([]),
        )
        row = {"raw_prompt": PROMPT, "reward_model": {"ground_truth": {"task_id": "a"}}}
        output = await loop.run({}, **row)
        answer = output.extra_fields["reward_extra_info"]
        assert answer.keys() == {"acc", "shared", "outcome", "detail"}
        assert len(output.response_ids) == len(output.response_mask)
        sampled = [
            i for i, own in zip(output.response_ids, output.response_mask, strict=True) if own
        ]
        said_all = words.decode(sampled)
        assert all(turn in said_all for turn in turns)
        return float(output.reward_score)

    return asyncio.run(run()), seen[-1]


def run_skyrl(adapter: Any, turns: Turns) -> tuple[float, str]:
    gym = framework("skyrl_gym")
    name = f"agent-{id(adapter)}"
    gym.register(name, entry_point=adapter)
    extras = {"reward_spec": {"ground_truth": {"task_id": "a"}}, "max_turns": 10}
    env = gym.make(name, env_config={}, extras=extras)
    messages, _ = env.init(list(PROMPT))
    assert "str_replace_editor" in messages[0]["content"]
    for turn in turns:
        result = env.step(turn)
        messages += result["observations"]
    assert result["done"]
    assert env.get_metrics()["passed"] == result["reward"]
    env.close()
    return result["reward"], str(messages)


ADAPTERS: dict[str, tuple[Run, str, str, str]] = {
    "verl": (run_verl, "verl.experimental.agent_loop.tool_agent_loop", "verl_agent", "agent_loop"),
    "skyrl": (run_skyrl, "skyrl_gym", "skyrl_agent", "agent_environment"),
}
each_trainer = pytest.mark.parametrize("name", ADAPTERS)


def adapter_of(name: str, tasks: Any, **options: Any) -> Any:
    _, needed, module, function = ADAPTERS[name]
    framework(needed)
    made = framework(f"sandboxkit.integrations.trainers.{module}")
    config = SweConfig(setup_retries=0)

    def make(session: Session) -> SweEnv:
        return SweEnv(session, tasks, config)

    return getattr(made, function)(make, **{"provider": "local", **options})


@each_trainer
@pytest.mark.parametrize("case", TURNS)
def test_a_trajectory_has_its_environments_reward(
    name: str, case: str, tasks: dict[str, Task]
) -> None:
    expected, turns, shown = TURNS[case]
    reward, seen = ADAPTERS[name][0](adapter_of(name, tasks), turns)
    assert reward == expected
    assert "Make it right." in seen
    assert shown in seen


@each_trainer
def test_a_failure_of_the_infrastructure_is_raised(name: str, tasks: dict[str, Task]) -> None:
    subject = adapter_of(name, tasks, provider=Refusing(lambda _: True))
    with pytest.raises(ProviderUnavailableError, match=r"a trajectory failed .* no capacity"):
        ADAPTERS[name][0](subject, ("done",))


def test_verl_samples_a_failed_trajectory_again(tasks: dict[str, Task]) -> None:
    subject = adapter_of(
        "verl", tasks, provider=Refusing(lambda number: number == 0), on_infra="retry"
    )
    assert run_verl(subject, ("done",))[0] in (0.0, 1.0)


@each_trainer
def test_a_mask_is_refused(name: str, tasks: dict[str, Task]) -> None:
    with pytest.raises(ConfigurationError, match="on_infra='mask'"):
        adapter_of(name, tasks, on_infra="mask")


def test_skyrl_ends_at_max_turns_and_leaves_nothing_of_an_abandoned_trajectory(
    tasks: dict[str, Task],
) -> None:
    subject = adapter_of("skyrl", tasks)
    extras = {"reward_spec": {"ground_truth": '{"task_id": "a"}'}, "max_turns": 2}
    env = subject(extras=extras)
    env.init(list(PROMPT))
    assert not env.step(RIGHT)["done"]
    ended = env.step(call("bash", command="true"))
    assert (ended["done"], ended["reward"]) == (True, 1.0)
    abandoned = subject(extras=extras)
    abandoned.init(list(PROMPT))
    abandoned.step("<tool_call>\nnothing\n</tool_call>")
    abandoned.close()
