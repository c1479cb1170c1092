"""Attention within each sequence of a packed row, instead of over the whole row under a mask.

A row of 32 sequences of 128 tokens then costs 32 x 128² pairs instead of 4096², with the same result.
Sequences with a common prefix can share it: the prefix is the stem of a tree, and each branch attends
to the stem and to itself. Stems of similar length, and branches of similar length, are batched.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["Tree", "apart", "keep_apart", "longest_packed", "shares"]

_NAME, _ASKED = "sandboxkit_packed", "sandboxkit_asked"
_STATEFUL = ("doge", "lfm2")
"""Model types whose layers carry a state along the row, or select what to attend to from the whole row, and
whose configuration does not say so."""
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types without a state."""
_MOST_PADDED = 1.5
"""Maximum ratio of computed pairs of tokens, with padding, to needed pairs when parts are batched."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Consecutive tokens of a row: a stem, then its branches. A single sequence is a stem only."""

    stem: int
    branches: tuple[int, ...] = ()


_Span = tuple[range, range]
"""The tokens of a stem or branch in the row, and those of its stem; none for a stem."""


@dataclass(frozen=True, slots=True)
class _PaddedSpans:
    """N stems, or N branches with their stems, that are computed in one call; indices of the row's tokens.

    Shorter ones are padded at the end with arbitrary indices. Causal attention ignores the padding of
    `own_NL`, and the mask `seen_N1LK` that of `before_NS`.
    """

    own_NL: torch.Tensor
    """The tokens whose attention is computed."""
    before_NS: torch.Tensor
    """The stem of each branch; S is 0 for stems."""
    seen_N1LK: torch.Tensor | None
    """Mask of the tokens that each token of a branch attends to; None for stems."""


@dataclass(frozen=True, slots=True)
class _Packed:
    parts: list[_PaddedSpans]
    places_T: torch.Tensor
    """Index of each token of the row in the concatenated, flattened parts."""


def keep_apart(model: PreTrainedModel) -> None:
    """Install this attention in a model; it acts when the call has the keywords of `apart(...)`.

    Leaves the model unchanged if a layer carries a state along the row, does not receive the keywords, needs its
    own mask, or has other attention than torch's.
    """
    forward = inspect.signature(model.forward).parameters.values()
    takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in forward)
    before = model.config._attn_implementation
    if takes_more and before == "sdpa" and not _carries_state(model.config):
        model.set_attn_implementation(_ASKED)
        model.set_attn_implementation(_NAME if _passes_keywords_on(model) else before)


def _carries_state(config: PreTrainedConfig) -> bool:
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    stateful = getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), "_is_stateful", False)
    return config.model_type in _STATEFUL or stateful or not kinds <= _ATTENTION


def _passes_keywords_on(model: PreTrainedModel) -> bool:
    """Whether the model passes extra keywords on to its attention, and makes no mask of its own.

    Runs the model on two tokens up to the attention of its first layer, which raises `_Asked`. This also
    works for a model on the meta device.
    """
    two = torch.ones(1, 2, dtype=torch.long, device=model.device)
    try:
        with torch.no_grad():
            model(input_ids=two, attention_mask=two, use_cache=False, packed=True)
    except _Asked as asked:
        return asked.alone
    except Exception:  # noqa: BLE001 - raised by layers that derive their own mask
        return False
    return False


def longest_packed(model: PreTrainedModel) -> float:
    """Return the length in tokens up to which sequences may share a row; 0: each has a row of its own.

    A layer with a window or with chunks computes longer ones with a mask of its own, which may not know of others.
    """
    if model.config._attn_implementation != _NAME:
        return 0
    config = model.config.get_text_config()
    limits = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min(filter(None, limits), default=math.inf)


def shares(model: PreTrainedModel, longest: int) -> bool:
    """Whether sequences of up to `longest` tokens may share stems."""
    return longest <= longest_packed(model)


def apart(model: PreTrainedModel, trees: Sequence[Tree]) -> dict[str, Any]:  # Any: the layers' own
    """Return the keywords for a call of the model with one row of these trees."""
    if len(trees) == 1 and not trees[0].branches:
        return {}
    stems, branches, end = list[_Span](), list[_Span](), 0
    for tree in trees:
        stem = range(end, end := end + tree.stem)
        stems.append((stem, range(0)))
        for size in filter(None, tree.branches):
            branches.append((range(end, end := end + size), stem))
    parts, order = list[_PaddedSpans](), list[int]()
    for bucket in [*_buckets(stems), *_buckets(branches)]:
        own, before = ([span[side] for span in bucket] for side in (0, 1))
        own_NL, before_NS = (_padded(spans, end).to(model.device) for spans in (own, before))
        order += own_NL.flatten().tolist()
        size = own_NL.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool, device=model.device).tril()
        stem_NLS = (before_NS < end)[:, None].expand(-1, size, -1)
        seen_NLK = torch.cat([stem_NLS, causal.expand(len(bucket), -1, -1)], 2)
        own_NL, before_NS = own_NL.clamp(max=end - 1), before_NS.clamp(max=end - 1)
        parts.append(_PaddedSpans(own_NL, before_NS, seen_NLK[:, None] if before[0] else None))
    places = torch.empty(end + 1, dtype=torch.long)
    places[torch.tensor(order)] = torch.arange(len(order))
    return {"packed": _Packed(parts, places[:end].to(model.device))}


def _padded(spans: Sequence[range], end: int) -> torch.Tensor:
    """Return the indices of spans of equal length: shorter ones end with `end`."""
    longest = max(map(len, spans))
    return torch.tensor([[*span, *[end] * (longest - len(span))] for span in spans]).long()


def _of(row_1HTD: torch.Tensor, index_NL: torch.Tensor) -> torch.Tensor:
    """Gather spans of a row: [N, H, L, D]."""
    flat = row_1HTD[0].index_select(1, index_NL.flatten())
    return flat.unflatten(1, index_NL.shape).transpose(0, 1)


def _buckets(spans: Sequence[_Span]) -> list[list[_Span]]:
    """Group spans into buckets to pad together."""
    found: list[list[_Span]] = []
    wide, needed = 0, 0
    for own, before in sorted(spans, key=lambda span: (-len(span[0]), -len(span[1]))):
        pairs = len(own) * (len(own) + len(before))
        if found:
            long = len(found[-1][0][0])
            padded = (len(found[-1]) + 1) * long * (long + max(wide, len(before)))
            if padded <= _MOST_PADDED * (needed + pairs):
                found[-1].append((own, before))
                wide, needed = max(wide, len(before)), needed + pairs
                continue
        found.append([(own, before)])
        wide, needed = len(before), pairs
    return found


def _attend(
    module: torch.nn.Module,
    query_BHTD: torch.Tensor,
    key_BGTD: torch.Tensor,
    value_BGTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed: _Packed | None = None,
    **more: Any,  # Any: keywords of many model families
) -> tuple[torch.Tensor, None]:
    """Compute attention with H query heads and G key groups; return [B, T, H, D]."""
    row = query_BHTD, key_BGTD, value_BGTD
    if packed is None:
        mixed, _ = sdpa_attention_forward(module, *row, attention_mask, **more)
        return mixed, None
    more |= {"is_causal": True}
    mixed_THD = []
    for part in packed.parts:
        query, key, value = (_of(each, part.own_NL) for each in row)
        if part.seen_N1LK is not None:
            key = torch.cat([_of(key_BGTD, part.before_NS), key], 2)
            value = torch.cat([_of(value_BGTD, part.before_NS), value], 2)
        mixed, _ = sdpa_attention_forward(module, query, key, value, part.seen_N1LK, **more)
        mixed_THD.append(mixed.flatten(0, 1))
    return torch.cat(mixed_THD).index_select(0, packed.places_T)[None], None


class _Asked(Exception):
    def __init__(self, alone: bool) -> None:
        self.alone = alone


# Any: the arguments of _attend.
def _ask(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    packed: Any = None,
    position_bias: Any = None,
    **_: Any,
) -> NoReturn:
    raise _Asked(packed is not None and attention_mask is None and position_bias is None)


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)
AttentionInterface.register(_ASKED, _ask)  # without a mask made by transformers
