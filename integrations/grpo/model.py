"""The policy model: loading, sharding over the ranks with FSDP2, and log-probabilities of packed rows."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.attention import Tree, apart, keep_apart, longest_packed, shares
from sandboxkit.integrations.grpo.ranks import on_first, rank_count

__all__ = ["Sequences", "load", "logp_of", "sharded"]

_PIECE = 512
"""Number of tokens for which the float32 log-probabilities of the whole vocabulary are held at a time."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Token ids of whole sequences (prompt + completion), and the start of each completion."""

    ids: Sequence[Sequence[int]]
    starts: Sequence[int]
    """Index of each completion's first token; at least 1, since prediction needs a previous token."""


def load(name: str, *, checkpointing: bool = False, empty: bool = False) -> PreTrainedModel:
    """Load a causal language model from a folder or a hub, on the CPU, in training mode and without dropout.

    The weights are float32; mixed precision casts them when computing. With `empty` the model is on
    the meta device, without weights. Raises ConfigurationError if the model cannot be loaded. Also turns off
    transformers' progress bars.
    """
    model: PreTrainedModel
    logging.disable_progress_bar()
    kept = {"dtype": torch.float32}
    try:
        if empty:
            config = AutoConfig.from_pretrained(name)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, **kept)
        else:
            model = AutoModelForCausalLM.from_pretrained(name, **kept)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model {name!r} cannot be loaded: {error}") from error
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    _without_dropout(model)
    keep_apart(model)
    return model.train()


def _without_dropout(model: PreTrainedModel) -> None:
    """Turn off dropout: the sampler had none, and the trained policy must be the same."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def sharded(
    make: Callable[[bool], PreTrainedModel], *, device: str = "cpu", bf16: bool = False
) -> PreTrainedModel:
    """Return the model on `device`, sharded layer by layer over all ranks; only rank 0 ever holds all weights.

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


def logp_of(
    model: PreTrainedModel, row: Sequences, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies, in nats, of all completion tokens of a packed row.

    Both are float32 of shape [completion tokens of the row], sequence by sequence; the entropies
    have no gradient. A prompt shared by adjacent sequences is computed once if the model's attention
    allows it. Logits are computed only at positions that predict a completion token. They are
    processed in pieces and recomputed in the backward pass, since the log-probabilities of a large
    vocabulary would need more memory than everything else. Several sequences are not longer than `longest_packed`.
    """
    assert len(row.ids) == 1 or max(map(len, row.ids)) <= longest_packed(model)
    flat, positions, predicting, trees = list[int](), list[int](), list[int](), list[Tree]()
    share = shares(model, max(map(len, row.ids)))
    numbers = range(len(row.ids))
    # Adjacent sequences with the same prompt are one tree; if none may share, each is one.
    prompts = [row.ids[i][: row.starts[i]] if share else (i,) for i in numbers]
    for _, found in itertools.groupby(numbers, prompts.__getitem__):
        members = list(found)
        ids, begun = row.ids[members[0]], len(flat)
        stem = row.starts[members[0]] if len(members) > 1 else len(ids)
        trees.append(Tree(stem, tuple(len(row.ids[i]) - stem for i in members if len(members) > 1)))
        flat += ids[:stem]
        positions += range(stem)
        if len(members) == 1:
            predicting += range(begun + row.starts[members[0]] - 1, begun + stem - 1)
        for i, size in zip(members, trees[-1].branches, strict=False):
            predicting += [begun + stem - 1, *range(len(flat), len(flat) + size)][:size]
            flat += row.ids[i][stem:]
            positions += range(stem, stem + size)
    chosen = [
        token for ids, start in zip(row.ids, row.starts, strict=True) for token in ids[start:]
    ]
    targets = torch.tensor(chosen, device=model.device)
    keywords = apart(model, trees)
    if keywords:
        keywords["position_ids"] = torch.tensor([positions], device=model.device)
    output = model(
        input_ids=torch.tensor([flat], device=model.device),
        use_cache=False,
        logits_to_keep=torch.tensor(predicting, device=model.device),
        **keywords,
    )
    pieces = zip(output.logits[0].split(_PIECE), targets.split(_PIECE), strict=True)
    parts = [
        checkpoint(_chosen, *each, temperature, use_reentrant=False, preserve_rng_state=False)
        for each in pieces
    ]
    return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _chosen(
    logits_TV: torch.Tensor, targets_T: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logp_TV = torch.log_softmax(logits_TV.float() / temperature, -1)
    with torch.no_grad():
        entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
    return logp_TV.gather(-1, targets_T[:, None])[:, 0], entropy_T
