"""Low-rank adapters (LoRA, arXiv:2106.09685) with peft: only they are trained and have optimizer state.

The engine and the export get merged weights.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import Weights

__all__ = ["add", "is_adapter", "merged"]

_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def add(model: PreTrainedModel, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Add adapters of `rank`, scaled by alpha / rank, to the linear layers `targets`, in place.

    They depend on `seed` alone, and not on torch's random state. All other weights are frozen. The
    model's output does not change until the adapters are trained. Empty `targets` means every linear
    layer but the head. Raises ConfigurationError if peft is missing or no layer matches.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigurationError(
            f"model.lora_rank={rank} needs peft: pip install 'sandboxkit-sdk[grpo]'"
        ) from error
    wanted = list(targets) or "all-linear"
    # peft annotates lora_alpha as int, but a float works as well.
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=wanted)  # type: ignore[arg-type]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ConfigurationError(f"model.lora_targets={wanted!r}: {error}") from error


def is_adapter(name: str) -> bool:
    """Whether a state_dict name belongs to an adapter."""
    return name.endswith((_DOWN, _UP))


def merged(model: PreTrainedModel, weights: Weights) -> Weights:
    """Yield a model's weights in the order of its state_dict, with the adapters merged into them."""
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
