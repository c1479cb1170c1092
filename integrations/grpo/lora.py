"""Low-rank adapters (LoRA, arXiv:2106.09685) with peft: only they are trained and have optimizer state.

The engine and the export get merged weights.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import Weights

__all__ = ["add", "is_adapter", "merged"]

_BASE, _DOWN, _UP = ".base_layer", ".lora_A.default.weight", ".lora_B.default.weight"


def add(model: PreTrainedModel, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Add adapters of `rank`, scaled by alpha / rank, to the layers `targets`, in place.

    They depend on `seed` alone, and not on torch's random state. All other weights are frozen. The
    model's output does not change until the adapters are trained. Empty `targets` means every linear
    layer, experts included, but the head and a router that returns more than a product. Raises
    ConfigurationError if peft is missing, or if no layer matches or one cannot be merged.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigurationError(
            f"model.lora_rank={rank} needs peft: pip install 'sandboxkit-sdk[grpo]'"
        ) from error
    wanted = list(targets) or "all-linear"
    routers = [] if targets else [name for name, part in model.named_modules() if _is_router(part)]
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type] # annotated as int, but a float works as well
        target_modules=wanted,
        exclude_modules=routers or None,
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ConfigurationError(f"model.lora_targets={wanted!r}: {error}") from error
    for name, value in model.named_parameters():
        if value.requires_grad and not is_adapter(name):
            raise ConfigurationError(
                f"model.lora_targets={wanted!r}: {name} cannot be merged; give linear layers"
            )


def _is_router(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) and type(part).forward is not nn.Linear.forward


def is_adapter(name: str) -> bool:
    """Whether a state_dict name belongs to an adapter."""
    return name.endswith((_DOWN, _UP))


def merged(model: PreTrainedModel, weights: Weights) -> Weights:
    """Yield a model's weights, with the adapters merged into them.

    `weights` is in the order of its state_dict. A weight with an adapter is held until that comes.
    """
    adapted = {_target(name, part) for name, part in model.named_modules() if _has_adapter(part)}
    held: dict[str, torch.Tensor] = {}
    for name, value in weights:
        plain = name.replace(_BASE, "")
        if name.endswith(_UP):
            layer = name.removesuffix(_UP)
            part = model.get_submodule(layer)
            target = _target(layer, part)
            yield target, held.pop(target) + _product(part, held.pop(f"{layer}{_DOWN}"), value)
        elif name.endswith(_DOWN) or plain in adapted:
            held[name if name.endswith(_DOWN) else plain] = value
        else:
            yield plain, value


def _has_adapter(part: nn.Module) -> bool:
    return "default" in getattr(part, "lora_A", ())


def _target(layer: str, part: nn.Module) -> str:
    """Return the name of the weight that an adapter changes; all experts of a layer are one weight."""
    return f"{layer.replace(_BASE, '')}.{getattr(part, 'parameter_name', 'weight')}"


def _product(part: nn.Module, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return what peft adds to a layer's weight, for whole tensors in the place of a rank's shards."""
    whole = copy.copy(part)
    whole._modules = dict(part._modules)
    for name, value in (("lora_A", down), ("lora_B", up)):
        factor = nn.Linear(1, 1, bias=False, device="meta")
        factor.weight = nn.Parameter(value, requires_grad=False)
        setattr(whole, name, nn.ModuleDict({"default": factor}))
    product: torch.Tensor = whole.get_delta_weight("default")
    return product
