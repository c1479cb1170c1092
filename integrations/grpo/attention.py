"""Attention within each sequence of a packed row, instead of over the whole row under a mask.

A row of 32 sequences of 128 tokens then costs 32 x 128² pairs instead of 4096², with the same result.
Sequences with a common prefix can share it: the prefix is the stem of a tree, and each branch attends
to the stem and to itself. Stems of similar length, and branches of similar length, are batched.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from sandboxkit.errors import ConfigurationError

__all__ = ["Tree", "apart", "keep_apart", "shares"]

_NAME, _ASKED = "sandboxkit_packed", "sandboxkit_asked"
_MOST_PADDED = 1.5
"""Maximum ratio of computed pairs of tokens, with padding, to needed pairs when parts are batched."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Consecutive tokens of a row: a stem, then its branches. A single sequence is a stem only."""

    stem: int
    branches: tuple[int, ...] = ()

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return self.stem + max(self.branches, default=0)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of a row's tokens, padded to the length of the longest."""

    tokens_T: torch.Tensor
    """Indices into the row, span by span."""
    places_T: torch.Tensor
    """Index of each token in the padded, flattened spans."""
    count: int
    longest: int

    def of(self, row_1HTD: torch.Tensor) -> torch.Tensor:
        """Gather the spans: [count, H, longest, D], zero-padded at the end."""
        heads, size = row_1HTD.shape[1], row_1HTD.shape[3]
        room = row_1HTD.new_zeros(self.count * self.longest, heads, size)
        filled = room.index_copy(0, self.places_T, row_1HTD[0].transpose(0, 1)[self.tokens_T])
        return filled.view(self.count, self.longest, heads, size).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class _Together:
    """A batch of stems, or of branches with their stems.

    Padding after the end of a span does not affect it, since attention is causal.
    """

    own: _Spans
    before: _Spans | None
    seen_N1LK: torch.Tensor | None
    """Mask of the tokens that each token of a branch attends to."""


@dataclass(frozen=True, slots=True)
class _Packed:
    parts: list[_Together]
    order_T: torch.Tensor
    """Index of each token of the row in the concatenated parts."""
    longest: int
    branches: bool


def keep_apart(model: PreTrainedModel) -> None:
    """Install this attention in a model; it acts when the call has the keywords of `apart(...)`.

    Leaves the model unchanged if its layers do not receive the keywords or need their own mask.
    """
    forward = inspect.signature(model.forward).parameters.values()
    takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in forward)
    if takes_more and model._supports_attention_backend:
        before = model.config._attn_implementation
        model.set_attn_implementation(_ASKED)
        model.set_attn_implementation(_NAME if _hands_on(model) else before)


def _hands_on(model: PreTrainedModel) -> bool:
    """Whether the first layer's attention receives the model's extra keywords and no mask.

    Computation stops at that layer. This also works for a model on the meta device.
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


def shares(model: PreTrainedModel, longest: int) -> bool:
    """Whether sequences of up to `longest` tokens may share stems: every layer attends to all earlier tokens."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    within = window is None or longest <= window
    chunked = getattr(config, "attention_chunk_size", None) is not None
    return model.config._attn_implementation == _NAME and within and not chunked


def apart(model: PreTrainedModel, trees: Sequence[Tree]) -> dict[str, Any]:  # Any: the layers' own
    """Return the keywords for a call of the model with one row of these trees."""
    alone = len(trees) == 1 and not trees[0].branches
    if alone or model.config._attn_implementation != _NAME:
        return {}
    stems, branches, befores, end = list[range](), list[range](), list[range](), 0
    for tree in trees:
        stems.append(range(end, end := end + tree.stem))
        for size in filter(None, tree.branches):
            branches.append(range(end, end := end + size))
            befores.append(stems[-1])
    parts = [
        _Together(_spans([stems[i] for i in chosen], model.device), None, None)
        for chosen in _buckets([(len(stem), 0) for stem in stems])
    ]
    for chosen in _buckets([(len(b), len(s)) for b, s in zip(branches, befores, strict=True)]):
        own = _spans([branches[i] for i in chosen], model.device)
        before = _spans([befores[i] for i in chosen], model.device)
        there = torch.tensor([len(befores[i]) for i in chosen], device=model.device)
        stem_NLS = torch.arange(before.longest, device=model.device) < there[:, None, None]
        causal = torch.ones(own.longest, own.longest, dtype=torch.bool, device=model.device).tril()
        both = stem_NLS.expand(-1, own.longest, -1), causal.expand(len(chosen), -1, -1)
        parts.append(_Together(own, before, torch.cat(both, 2)[:, None]))
    order = torch.cat([part.own.tokens_T for part in parts]).argsort()
    longest = max(tree.longest for tree in trees)
    return {"packed": _Packed(parts, order, longest, bool(branches))}


def _spans(chosen: Sequence[range], device: torch.device) -> _Spans:
    longest = max(map(len, chosen))
    tokens = [token for span in chosen for token in span]
    places = [number * longest + i for number, span in enumerate(chosen) for i in range(len(span))]
    return _Spans(
        torch.tensor(tokens, device=device),
        torch.tensor(places, device=device),
        len(chosen),
        longest,
    )


def _buckets(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Group spans into buckets to pad together, given the length of each and of its stem."""
    found: list[list[int]] = []
    wide, needed = 0, 0
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number], reverse=True):
        own, before = sizes[number]
        pairs = own * (own + before)
        if found:
            long = sizes[found[-1][0]][0]
            padded = (len(found[-1]) + 1) * long * (long + max(wide, before))
            if padded <= _MOST_PADDED * (needed + pairs):
                found[-1].append(number)
                wide, needed = max(wide, before), needed + pairs
                continue
        found.append([number])
        wide, needed = before, pairs
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
    window = more.get("sliding_window")
    whole = (
        packed is None
        or (window is not None and packed.longest > window)
        or more.get("position_bias") is not None
        or getattr(getattr(module, "config", None), "attention_chunk_size", None) is not None
    )
    if whole or packed is None:
        if packed is not None and packed.branches:
            raise ConfigurationError(
                f"{type(module).__name__} cannot share prompts between sequences: use another model"
            )
        mixed, _ = sdpa_attention_forward(module, *row, attention_mask, **more)
        return mixed, None
    more |= {"is_causal": True}
    mixed_THD = []
    for part in packed.parts:
        query, key, value = (part.own.of(each) for each in row)
        if part.before is not None:
            key = torch.cat([part.before.of(key_BGTD), key], 2)
            value = torch.cat([part.before.of(value_BGTD), value], 2)
        mixed, _ = sdpa_attention_forward(module, query, key, value, part.seen_N1LK, **more)
        mixed_THD.append(mixed.flatten(0, 1)[part.own.places_T])
    return torch.cat(mixed_THD)[packed.order_T][None], None


class _Asked(Exception):
    def __init__(self, alone: bool) -> None:
        self.alone = alone


# Any: the arguments of _attend.
def _ask(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, packed: Any = None, **_: Any
) -> NoReturn:
    raise _Asked(packed is not None and attention_mask is None)


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)
AttentionInterface.register(_ASKED, _ask)  # without a mask made by transformers
