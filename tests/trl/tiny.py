"""A small model and tokenizer, what it says by script, a judge of what it did, and whole trainings with TRL."""

import asyncio
import json
import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxkit import Sandbox
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.provider import Output
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.fake import FakeBox
from sandboxkit.types import Command, Exit

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from sandboxkit.integrations.trl import EnvironmentReward, SandboxRollouts

LONG = {"max_completion_length": 1500, "max_tool_calling_iterations": 4}
CHAT = [{"prompt": [{"role": "user", "content": "fix it."}], "want": "42"}] * 16


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
    data: dict[str, Any] = {"train_dataset": Dataset.from_list(rows), "processing_class": words}
    return GRPOTrainer(model=model, args=config, **data, **options)


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


def script(training: Any, *turns: str) -> list[float]:
    """Let every rollout say these turns, again and again; returns when they were asked for."""
    times: list[float] = []
    words = training.processing_class

    def generate(prompt_ids: list[Any], *_: Any, **__: Any) -> tuple[list[Any], None]:
        text = turns[len(times) % len(turns)]
        times.append(time.monotonic())
        ids = [*words(text)["input_ids"], words.eos_token_id]
        return [list(ids) for _ in prompt_ids], None

    training._generate_single_turn = generate
    return times


def call(name: str, **arguments: str) -> str:
    answer = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{answer}\n</tool_call>"


def sandboxes_of(session: str) -> list[str]:
    """The ids of those on the local provider that a session has."""
    listed = Sandbox.list(provider="local").result()
    return [info.id for info in listed if info.tags.get("sandboxkit.session") == session]


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    found = (await sandbox.read_file("/workspace/answer")).decode().strip()
    if found == row["want"]:
        return Verdict(Outcome.PASSED, 1.0)
    return Verdict(Outcome.FAILED, 0.0, "policy", f"{found!r}")


CHANGE = {"old_str": "40", "new_str": "41"}
TURNS = (
    call("str_replace_editor", command="create", path="/workspace/answer", file_text="40"),
    call("str_replace_editor", command="str_replace", path="/workspace/answer", **CHANGE),
    call("bash", command="echo $(($(cat answer) + 1)) > answer; cat answer"),
    "done",
)


class Meeting(FakeProvider):
    """Runs no command before the first commands of `number` sandboxes have been asked for."""

    def __init__(self, number: int) -> None:
        super().__init__(_MeetingBox)
        self.first, self.seen = asyncio.Barrier(number), set[str]()


class _MeetingBox(FakeBox):
    async def exec(self, command: Command, output: Output) -> Exit:
        assert isinstance(self.provider, Meeting)
        if self.id not in self.provider.seen:
            self.provider.seen.add(self.id)
            await self.provider.first.wait()
        return await super().exec(command, output)
