"""Each trainer's own way from a response to a reward, through the adapter as the document uses it."""

import asyncio
import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.adapters_document import use
from tests.frameworks_here import framework
from tests.trainers.published import slime

Reward = Callable[[str, Any], float | None]
"""Returns the reward of a response for a ground truth; None if the trainer leaves the sample out.
Raises what stops the trainer."""

PROMPT = "Write add(a, b).\n"


def file_of(trainer: str, folder: Path, changes: str = "", grader: str = "HostCompare()") -> Path:
    """Write the document's lines for a trainer, with other options, to a file, as users have them."""
    code = use(trainer).replace('provider="docker"', f"provider=PROVIDER{changes}")
    code = code.replace("HostCompare()", grader)
    path = folder / "sandbox_reward.py"
    path.write_text(f"from tests.trainers.options import *\n{code}")
    return path


class Letters:
    """A tokenizer whose tokens are characters; "\\x00" is its only special token."""

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        import torch

        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        text = "".join(chr(int(number)) for number in ids)
        return text.rstrip("\x00") if skip_special_tokens else text.replace("\x00", "<|im_end|>")


def verl(path: Path, manager: str = "naive") -> Reward:
    framework("verl")
    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.reward import get_custom_reward_fn

    function = {"path": str(path), "name": "compute_score"}
    config = OmegaConf.create({"reward": {"custom_reward_function": function}})
    compute_score = get_custom_reward_fn(config)
    assert inspect.iscoroutinefunction(compute_score)

    async def run(text: str, truth: Any) -> float:
        ids = torch.tensor([[ord(letter) for letter in f"{text}\x00"]])
        tensors = {"responses": ids, "attention_mask": torch.ones_like(ids)}
        row = {"data_source": "code", "reward_model": {"ground_truth": truth}, "extra_info": {}}
        others = {name: np.array([value], dtype=object) for name, value in row.items()}
        data = DataProto.from_dict(tensors=tensors, non_tensors=others)
        given = {"config": config, "tokenizer": Letters(), "compute_score": compute_score}
        answer = await get_reward_manager_cls(manager)(**given).run_single(data)
        if "error" not in answer["reward_extra_info"]:
            keys = {"score", "acc", "shared", "outcome", "detail"}
            assert answer["reward_extra_info"].keys() == keys
        return float(answer["reward_score"])

    return lambda text, truth: asyncio.run(run(text, truth))


def openrlhf(path: Path) -> Reward:
    """Let OpenRLHF's executor of single turns call the file; a reward that is missing stops it."""
    agent = framework("openrlhf.utils.agent")
    executor = agent.SingleTurnAgentExecutor(str(path))
    return lambda text, truth: _episode(executor, text, truth)


def openrlhf_agent(path: Path) -> Reward:
    """Let OpenRLHF run an episode of the file's agent."""
    framework("openrlhf.utils.agent")
    text = path.read_text().replace("reward_function", "agent_executor")
    executor = made(path, text.replace("reward_func ", "AgentExecutor "))["AgentExecutor"]()
    return lambda text, truth: _episode(executor, text, truth)


def _episode(executor: Any, text: str, truth: Any) -> float | None:
    async def generate(*_: Any, **__: Any) -> Any:
        ids = [ord(letter) for letter in f"{text}\x00"]
        shown = Letters().decode(ids, skip_special_tokens=False)
        output = SimpleNamespace(token_ids=ids, text=shown, finish_reason="stop")
        return SimpleNamespace(outputs=[output])

    sampling = SimpleNamespace(max_tokens=500, logprobs=None)
    engine, label = SimpleNamespace(generate=generate), json.dumps(truth)
    answer = asyncio.run(executor.execute(PROMPT, label, sampling, 4000, Letters(), engine))
    if answer["reward"] is None:  # its trainer cannot make a batch of it
        raise RuntimeError("OpenRLHF stops: no reward")
    assert answer["extra_logs"].keys() >= {"infra_failed", "shared"}
    reward, score = float(answer["reward"]), float(answer["scores"])
    assert math.isnan(reward) == math.isnan(score)
    return None if math.isnan(reward) else reward


def slime_single(path: Path) -> Reward:
    custom_rm = made(path)["custom_rm"]

    def run(text: str, truth: Any) -> float | None:
        group = [slime.Sample(prompt=PROMPT, response=text, label=json.dumps(truth))]
        (sample,) = asyncio.run(slime.rewarded(custom_rm, group, group_rm=False))
        return None if sample.remove_sample else sample.reward

    return run


def skyrl(path: Path) -> Reward:
    gym = framework("skyrl_gym")
    name = f"code-{path.parent.name}"
    gym.register(name, entry_point=made(path)["CodeEnv"])

    def run(text: str, truth: Any) -> float:
        env = gym.make(name, env_config={}, extras={"reward_spec": {"ground_truth": truth}})
        prompt, _ = env.init([{"role": "user", "content": PROMPT}])
        assert len(prompt) == 1
        result = env.step(text)
        assert env.get_metrics().keys() == {"passed", "shared"}
        env.close()
        assert result["done"]
        assert result["observations"] == []
        return float(result["reward"])

    return run


def nemo_gym(path: Path) -> Reward:
    """POST a row to the file's server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent / "published")
        server = made(path)["Server"]()

    def run(text: str, truth: Any) -> float | None:
        row = {"responses_create_params": {"input": PROMPT}, "response": {"output_text": text}}
        answer = asyncio.run(server.post({**row, "verifier_metadata": truth}))
        assert answer["trust"] in ("isolated", "shared")
        marked = answer.get("mask_sample", False)
        assert answer.get("instance_config", {}).get("mask_sample", False) is marked
        assert ("_ng_failure_class" in answer) is marked
        return None if marked else float(answer["reward"])

    return run


def made(path: Path, text: str = "") -> dict[str, Any]:
    """What the file's code makes, or this code in its place."""
    names: dict[str, Any] = {}
    exec(compile(text or path.read_text(), str(path), "exec"), names)
    return names
