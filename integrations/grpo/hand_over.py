"""The hand-over of weights: what the engine gets, and the check that it computes what the trainer does.

The check scores completions that the engine just sampled, and fixed tokens. A policy that is sure of its
completions gives them log-probabilities near 0, on both sides, even where the engine's weights are wrong.
Fixed tokens, drawn from the whole vocabulary, show that.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion

from sandboxkit.integrations.grpo import lora
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.engines import EngineError, Weights
from sandboxkit.integrations.grpo.training import TrainingSample

__all__ = ["fixed_tokens", "handed", "in_checkpoint_names", "refuse_difference"]

_LAYER = re.compile(r".*?\.\d+\.")


def handed(model: PreTrainedModel, config: Config) -> Weights:
    """Yield the full tensors for the engine, gathered one by one, with merged adapters.

    Tensors are cast to the engine's type before gathering, except adapters, which are merged later.
    The hf engine gets the names of the state_dict, vLLM those of the model's files.
    """
    state = model.state_dict()
    inside = config.engine.kind == "hf"
    dtype = torch.float32 if inside else getattr(torch, config.engine.dtype)
    merged = lora.merged(model, _whole(state, dtype))
    return merged if inside else in_checkpoint_names(model, merged)


def in_checkpoint_names(model: PreTrainedModel, weights: Weights) -> Weights:
    """Yield the weights with the names and shapes that they have in the model's files.

    They differ where transformers converts while loading: the experts of a layer are one tensor in the
    model and many in its files. The tensors of one layer are held together.
    """
    layer, held = "", dict[str, torch.Tensor]()
    for name, value in weights:
        found = _LAYER.match(name)
        its = found.group() if found else ""
        if its != layer:
            yield from revert_weight_conversion(model, held).items()
            layer, held = its, {}
        held[name] = value
    yield from revert_weight_conversion(model, held).items()


def fixed_tokens(tokenizer: PreTrainedTokenizerBase, count: int, seed: int) -> tuple[int, ...]:
    """Return tokens that depend on `seed` alone: uniform over the vocabulary without special tokens."""
    special = set(tokenizer.all_special_ids)
    known = [token for token in range(len(tokenizer)) if token not in special]
    return tuple(random.Random(seed).choices(known, k=count))


def refuse_difference(
    samples: Sequence[TrainingSample],
    own: Sequence[Sequence[float]],
    version: int,
    config: Config,
) -> None:
    """Raise EngineError if sampler and trainer give the samples' tokens different log-probabilities.

    `own` are the trainer's. The bound is `engine.max_difference`, on the mean of the absolute
    differences.
    """
    sampler = [value for sample in samples for value in sample.sampler_logp]
    trainer = [value for values in own for value in values]
    tokens = len(sampler)
    distance = sum(abs(a - b) for a, b in zip(sampler, trainer, strict=True)) / tokens
    coarse = config.model.bf16 or config.engine.dtype == "bfloat16"
    bound = config.engine.max_difference or (0.2 if coarse else 0.001)
    if math.isfinite(distance) and distance <= bound:
        return
    raise EngineError(
        f"after the hand-over of the weights of step {version}, {tokens} tokens have a mean "
        f"log-probability of {sum(sampler) / tokens:.4g} by the engine and of "
        f"{sum(trainer) / tokens:.4g} by the trainer, a mean difference of {distance:.4g} and more "
        f"than {bound:g}: the engine does not compute what is trained; use another engine.kind or "
        "engine.dtype, or allow it with engine.max_difference"
    )


def _whole(state: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Weights:
    for name, value in state.items():
        cast = value.is_floating_point() and not lora.is_adapter(name)
        sent = value.to(dtype) if cast else value
        yield name, sent.full_tensor() if isinstance(sent, DTensor) else sent
