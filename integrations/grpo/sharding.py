"""Sharding of a model over the ranks with FSDP2; only rank 0 ever holds all weights."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.ranks import on_first, rank_count

__all__ = ["sharded"]


def sharded(
    make: Callable[[bool], PreTrainedModel], *, device: str = "cpu", bf16: bool = False
) -> PreTrainedModel:
    """Return the model on `device`, sharded layer by layer over all ranks.

    `make(True)` returns the model on the meta device, without weights. `make(False)` returns the whole
    model on the CPU; it is called only on rank 0, which broadcasts the weights one by one. With
    `bf16` the model computes in bfloat16 and reduces gradients in float32. Raises
    ConfigurationError if the model has no list of layers.
    """
    model = make(True)
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if bf16
        else MixedPrecisionPolicy()
    )
    mesh = init_device_mesh(device, (rank_count(),))
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    whole = on_first(lambda: make(False))
    model.to_empty(device=device)
    model.tie_weights()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole.state_dict() if whole else {}, options=options)
    # Buffers such as rotary frequencies are not in the state_dict and would stay uninitialized.
    known = dict(whole.named_buffers()) if whole else {}
    for name, buffer in model.named_buffers():
        if whole:
            buffer.copy_(known[name])
        dist.broadcast(buffer, 0)
    if whole:
        model.generation_config = whole.generation_config
    return model


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    if not lists:
        raise ConfigurationError(f"{type(model).__name__} has no list of layers to shard")
    return max(lists, key=len)
