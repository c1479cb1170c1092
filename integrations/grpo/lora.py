"""Low-rank adapters (LoRA, arXiv:2106.09685), by peft: they alone are trained and kept by the optimizer.

Whoever takes the weights from the trainer, the engine and the export, gets them merged; vLLM servers
can have the adapters alone.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import Weights

__all__ = ["add", "alone", "is_adapter", "merged"]

_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def add(model: PreTrainedModel, rank: int, alpha: float, targets: Sequence[str]) -> None:
    """Put adapters of `rank`, scaled by alpha / rank, beside the linear layers named; in place.

    The model is the same until they are trained, and all else in it is frozen. No target means
    every linear layer but the head. Raises ConfigurationError.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigurationError(
            f"model.lora_rank={rank} needs peft: pip install 'sandboxkit-sdk[grpo]'"
        ) from error
    wanted = list(targets) or "all-linear"
    # The type annotation of peft says int; a share of the rank is as good.
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=wanted)  # type: ignore[arg-type]
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ConfigurationError(f"model.lora_targets={wanted!r}: {error}") from error


def is_adapter(name: str) -> bool:
    """Whether a name of the state_dict is that of a part of an adapter."""
    return name.endswith((_DOWN, _UP))


def alone(weights: Weights) -> Weights:
    """Those of the adapters, named as peft does in its files."""
    for name, value in weights:
        if is_adapter(name):
            yield f"base_model.model.{name.replace('.default.weight', '.weight')}", value


def merged(model: PreTrainedModel, weights: Weights) -> Weights:
    """The weights of a model's whole state_dict, in its order, as if there were no adapters."""
    held: dict[str, torch.Tensor] = {}
    for name, value in weights:
        if name.endswith(".base_layer.weight") or name.endswith(_DOWN):
            held[name] = value
        elif name.endswith(_UP):
            layer = name.removesuffix(_UP)
            scale = model.get_submodule(layer).scaling["default"]
            base, down = held.pop(f"{layer}.base_layer.weight"), held.pop(f"{layer}{_DOWN}")
            yield f"{layer}.weight", base + scale * (value @ down)
        else:
            yield name.replace(_BASE, "."), value
