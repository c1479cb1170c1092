"""A model and a tokenizer small enough for a test, and whole trainings with TRL's trainer."""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from sandboxkit import SandboxSpec, SandboxTerminatedError
from sandboxkit.integrations.trl import EnvironmentReward, SandboxRollouts
from sandboxkit.provider import Output
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Command, Exit
from tests.trl.scripted import CHAT, LONG, script


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, with TRL's own chat template for Qwen3, which renders tools."""
    folder = Path(__file__).parent / "tokenizer"
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return made


def trainer(folder: Path, rows: list[dict[str, Any]], **options: Any) -> GRPOTrainer:
    """A trainer of a model that knows nothing, for 8 completions of each prompt."""
    words = tokenizer()
    torch.set_num_threads(1)  # more of them wait for one another where the machine is busy
    torch.manual_seed(0)
    given = tomllib.loads((Path(__file__).parent / "trainer.toml").read_text())
    ends = {"pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id}
    shape = Qwen3Config(vocab_size=len(words), bos_token_id=None, **ends, **given["model"])
    model = Qwen3ForCausalLM(shape)
    config = GRPOConfig(str(folder), **(given["config"] | options.pop("config", {})))
    return GRPOTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=words,
        **options,
    )


def train(
    folder: Path,
    environments: Any,
    turns: Sequence[str],
    rows: list[dict[str, Any]] = CHAT,
    reward: Any = None,
    **config: Any,
) -> GRPOTrainer:
    """Train with environments or rollouts, while each rollout says these turns; returns the trainer."""
    mode = "rollout_func" if isinstance(environments, SandboxRollouts) else "environment_factory"
    functions = [EnvironmentReward()] if reward is None else [reward] if reward else None
    options = {"reward_funcs": functions, mode: environments, "config": {**LONG, **config}}
    training = trainer(folder, rows, **{k: v for k, v in options.items() if v is not None})
    if turns:
        script(training, *turns)
    training.train()
    return training


def rewards(training: GRPOTrainer, name: str = "environment_reward") -> list[float]:
    return list(training._logs["rewards"][name])


def rates(training: GRPOTrainer, steps: int) -> list[float]:
    return [entry["infra_failed_rate"] for entry in training.state.log_history[:steps]]


class Dying(FakeProvider):
    """Every third sandbox dies under its first command."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    async def create(self, spec: SandboxSpec) -> str:
        self.made.append(await super().create(spec))
        return self.made[-1]

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        if self.made.index(sandbox_id) % 3 == 2:
            raise SandboxTerminatedError("out of memory", provider=self.name)
        return await super().exec(sandbox_id, command, output)


def expected_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """GRPO's formula over those of each group that have a reward; 0 for the others."""
    advantages = torch.zeros_like(rewards)
    for group in range(len(rewards) // 8):
        members = slice(8 * group, 8 * group + 8)
        values = rewards[members]
        known = ~values.isnan()
        of = values[known]
        advantages[members][known] = (of - of.mean()) / (of.std() + 1e-4)
    return advantages
