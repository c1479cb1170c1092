"""A tiny model and tokenizer made on the spot, and a provider that fails on purpose."""

import itertools
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec

torch.set_num_threads(1)  # two workers on a busy machine only wait for each other

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """Bytes and little else."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    raw.train_from_iterator(["def f(x):\n    return x\n"], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|im_end|>", padding_side="left"
    )
    made.chat_template = template
    return made


def model(words: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Some ten thousand weights."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=4096,
            pad_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
            bos_token_id=None,
        )
    )


class FailingProvider(FakeProvider):
    """Refuses to create a share of the sandboxes, evenly spread: 3 of every 10 for 0.3."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share, self._calls = share, itertools.count(1)

    async def create(self, spec: SandboxSpec) -> str:
        call = next(self._calls)
        if int(call * self._share) != int((call - 1) * self._share):
            raise ProviderUnavailableError("injected: no sandbox today", provider=self.name)
        return await super().create(spec)


# Any: the options of GRPOConfig.
def options(folder: str, **more: Any) -> dict[str, Any]:
    """Options of a short run on the CPU."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "max_steps": 5,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "beta": 0.0,
        **more,
    }
