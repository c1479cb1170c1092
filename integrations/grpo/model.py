"""The policy model: loaded, and asked for the log-probabilities of packed rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sandboxkit.errors import ConfigurationError

__all__ = ["Sequences", "load", "logp_of"]

# Families whose layers carry state along the row (state space, linear attention, convolution):
# they would leak one packed sequence into the next.
_RECURRENT = (
    "bamba",
    "falcon_mamba",
    "granitemoehybrid",
    "jamba",
    "lfm2",
    "mamba",
    "mamba2",
    "nemotron_h",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "zamba",
    "zamba2",
)

_PIECE = 512
"""Tokens whose float32 log-probabilities of the whole vocabulary exist at a time."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Token ids of whole sequences, prompt and completion, and where each completion begins."""

    ids: Sequence[Sequence[int]]
    starts: Sequence[int]
    """Index of each completion's first token; at least 1, for the model predicts from a token."""


def load(name: str, *, checkpointing: bool = False, empty: bool = False) -> PreTrainedModel:
    """Load a causal language model from a folder or a hub, on the CPU, in training mode.

    The weights are kept in float32; mixed precision casts when computing. One that is to be
    `empty` has none, on the meta device. Raises ConfigurationError when there is none, or it is
    of a family that cannot be packed.
    """
    model: PreTrainedModel
    kept = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    try:
        config = AutoConfig.from_pretrained(name)
        if config.model_type in _RECURRENT:
            raise ConfigurationError(
                f"model {name!r} is a {config.model_type}: its layers would leak one packed "
                "sequence into the next; use a model with attention only"
            )
        if empty:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, **kept)
        else:
            model = AutoModelForCausalLM.from_pretrained(name, **kept)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"model {name!r} cannot be loaded: {error}") from error
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def logp_of(
    model: PreTrainedModel, row: Sequences, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies, in nats, of all completion tokens of a packed row.

    Both are flat, [completion tokens of the row], float32, one sequence after the other; the
    entropies have no gradient. Logits are only made where a completion token is predicted; what is
    computed from them is made in pieces, and again in the backward pass, for a row's
    log-probabilities of a large vocabulary are larger than the rest of it.
    """
    device = model.device
    flat = torch.tensor([token for ids in row.ids for token in ids], device=device)
    positions = torch.cat([torch.arange(len(ids), device=device) for ids in row.ids])
    predicted, offset = [], 0
    for ids, start in zip(row.ids, row.starts, strict=True):
        predicted.append(torch.arange(offset + start, offset + len(ids), device=device))
        offset += len(ids)
    targets = torch.cat(predicted)
    output = model(
        input_ids=flat[None],
        position_ids=positions[None],
        use_cache=False,
        logits_to_keep=targets - 1,
    )
    pieces = zip(output.logits[0].split(_PIECE), flat[targets].split(_PIECE), strict=True)
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
