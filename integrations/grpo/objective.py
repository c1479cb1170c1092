"""The objective: from log-probabilities and advantages to a loss, as pure functions.

For token t of completion i, with advantage A_i and log-probabilities under the policy being
trained (logp), under the policy that the ratio is against (old), under the sampler that wrote the
completion (sampler) and under a reference (ref), the loss is

    L = sum over tokens  ( -w_it J_it + beta k3_it )  / D

    r_it  = exp(logp_it - old_it)
    J_it  = min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)       all but cispo and gspo
    k3_it = exp(ref_it - logp_it) - (ref_it - logp_it) - 1                   Schulman's estimator

| loss | what differs | D, the denominator | paper |
|---|---|---|---|
| grpo | | (tokens of i) x (completions) | arXiv:2402.03300 |
| dr_grpo | | (completions) x max_completion_tokens | arXiv:2503.20783 |
| dapo | clip_high > clip_low ("clip higher") | all tokens of the global batch | arXiv:2503.14476 |
| bnpo | | tokens of the micro-batch, then the mean over micro-batches | TRL's name |
| cispo | J = stop_gradient(min(r, 1 + clip_high)) A logp | as dapo | arXiv:2506.13585 |
| gspo | r_i = exp(mean over t of (logp - old)), one a completion | as grpo | arXiv:2507.18071 |

Off policy, with completions of older weights (`buffer.lag`) or more than one optimizer step on a
batch (`epochs`), old is the sampler: the ratio is that of the policy to who wrote the tokens, and
clipping bounds it. On policy, old is logp without its gradient: the ratio is 1 and clipping never
acts; what is left between trainer and sampler, who compute the same weights differently, is bounded
by w. With rho = exp(logp - sampler), without gradient, of the token or, for sequence_*, the product
over its completion:

| weighting | w on policy | w off policy, where the ratio has rho in it | paper |
|---|---|---|---|
| none | 1 | 1 | |
| *_truncate | min(rho, weight_cap) | refused: it would count rho twice | arXiv:2508.03219 |
| *_mask | rho; 0 outside of weight_floor to weight_cap | 1; 0 outside | arXiv:2510.18855 |

Departures from the papers. DAPO's dynamic sampling and soft overlong punishment are not part of the
loss: the buffer refills groups of equal rewards, and `mask_truncated` leaves out what was cut off.
CISPO's lower bound is left out, as its authors do. GSPO's gradient is that of the sequence-level
ratio (GSPO-token is not built). The denominators count the whole batch of an optimizer step, over
all ranks and all micro-batches, before the first backward pass: so neither the number of ranks nor
the packing changes the gradient.

Tokens are flat, [tokens]: completions one after the other, which is what packing gives; `sequence`
says for each token to which completion of this micro-batch it belongs.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from sandboxkit.errors import ConfigurationError

__all__ = [
    "LossKind",
    "Objective",
    "Statistics",
    "Tokens",
    "Totals",
    "Weighting",
    "loss",
    "weights",
]

LossKind = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo"]
Weighting = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]

_CLIP_LOW, _CLIP_HIGH = 0.2, 0.28
_KINDS = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo")
_WEIGHTINGS = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


@dataclass(frozen=True, slots=True)
class Objective:
    """Which loss, and its constants."""

    loss: LossKind = "dapo"
    clip_low: float = _CLIP_LOW
    clip_high: float = _CLIP_HIGH
    beta: float = 0.0
    """Weight of the KL term; 0 needs no reference model."""
    weighting: Weighting | None = None
    """How far the sampler's own probabilities count. None: token_truncate on policy, else none."""
    weight_cap: float = 3.0
    weight_floor: float = 0.0
    """Of *_mask, which is two-sided with it."""
    epochs: int = 1
    """Optimizer steps on each batch."""
    mask_truncated: bool = False
    """Leave out completions that max_completion_tokens cut off (DAPO's overlong filtering)."""
    max_completion_tokens: int | None = None
    """For dr_grpo, which divides by it."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("loss", self.loss, _KINDS),
            ("weighting", self.weighting, _WEIGHTINGS),
        ):
            if value not in known and value is not None:
                raise ConfigurationError(f"{name}={value!r}: use one of {', '.join(known)}")
        if not 0 < self.clip_low <= 1 or not self.clip_high > 0:
            raise ConfigurationError(
                f"clip_low={self.clip_low!r}, clip_high={self.clip_high!r}: "
                "give 0 < clip_low <= 1 and clip_high > 0"
            )
        if not (0 <= self.beta < math.inf and 0 < self.weight_cap < math.inf):
            raise ConfigurationError(
                f"beta={self.beta!r}, weight_cap={self.weight_cap!r}: give beta >= 0 and a "
                "positive cap"
            )
        if not 0 <= self.weight_floor < self.weight_cap:
            raise ConfigurationError(
                f"weight_floor={self.weight_floor!r}: give 0 or more, below weight_cap"
            )
        if self.weight_floor and not (self.weighting or "").endswith("mask"):
            raise ConfigurationError(
                f"weight_floor={self.weight_floor!r} does nothing with weighting="
                f"{self.weighting!r}: use token_mask or sequence_mask"
            )
        if self.epochs < 1:
            raise ConfigurationError(f"epochs={self.epochs!r}: give 1 or more")
        if self.loss == "dr_grpo" and not self.max_completion_tokens:
            raise ConfigurationError("loss='dr_grpo' divides by max_completion_tokens: set it")

    def under(self, *, off_policy: bool) -> "Objective":
        """The same with its default weighting made explicit.

        Raises ConfigurationError for a constant that would do nothing, or count twice.
        """
        if not off_policy:
            clips = (
                ("clip_low", self.clip_low, _CLIP_LOW),
                ("clip_high", self.clip_high, _CLIP_HIGH),
            )
            idle = [f"{name}={value!r}" for name, value, default in clips if value != default]
            if self.loss in ("cispo", "gspo"):
                idle.append(f"loss={self.loss!r}")
            if idle:
                raise ConfigurationError(
                    f"{', '.join(idle)}: on policy the ratio is 1, and neither clipping nor how the "
                    "ratio is made does anything; set buffer.lag or objective.epochs, or leave it out"
                )
        elif (self.weighting or "").endswith("truncate"):
            raise ConfigurationError(
                f"weighting={self.weighting!r} counts the sampler twice where the ratio is against "
                "it (buffer.lag or objective.epochs): use none, token_mask or sequence_mask"
            )
        return replace(
            self, weighting=self.weighting or ("none" if off_policy else "token_truncate")
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one micro-batch that may carry a loss, all of shape [tokens]."""

    logp: torch.Tensor
    """Under the policy being trained, with its gradient."""
    old: torch.Tensor
    """What the ratio is against: `logp.detach()` on policy, `sampler` off policy."""
    sampler: torch.Tensor
    """As the sampler reported them."""
    advantages: torch.Tensor
    """Of the token's completion."""
    mask: torch.Tensor
    """1.0 where the policy wrote the token, 0.0 for what a tool said and for padding."""
    sequence: torch.Tensor
    """Which completion of the micro-batch, int64, from 0."""
    sequences: int
    """How many completions the micro-batch has."""
    reference: torch.Tensor | None = None
    off_policy: bool = False
    """Whether the ratio is against the sampler."""

    def per_sequence(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of [tokens] values for each completion, [sequences]."""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)


@dataclass(frozen=True, slots=True)
class Totals:
    """What an optimizer step's whole batch has, on all ranks together."""

    sequences: float
    tokens: float
    micro_batches: float = 1.0
    """Only bnpo needs it."""

    @classmethod
    def of(cls, mask: torch.Tensor, sequences: int) -> "Totals":
        """Those of a batch that is a single micro-batch on a single rank."""
        return cls(float(sequences), mask.sum().item())


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sums over a micro-batch, to be added up and divided by `tokens`; float64 scalars."""

    tokens: float
    clipped: float
    """Tokens whose gradient the clipping took away."""
    kl: float
    """k3 against the reference, 0 without one."""
    off_policy: float
    """|logp - sampler|: how far the sampler is from the trainer."""
    weight: float
    """Importance weights."""
    masked: float
    """Tokens whose weight is 0."""


@dataclass(slots=True)
class _Terms:
    surrogate: torch.Tensor
    clipped: torch.Tensor
    kl: torch.Tensor = field(default_factory=lambda: torch.zeros(()))


def weights(objective: Objective, tokens: Tokens) -> torch.Tensor:
    """How much each token counts, [tokens]: w of the table above. Without gradient."""
    weighting = objective.weighting or ("none" if tokens.off_policy else "token_truncate")
    if weighting == "none":
        return torch.ones_like(tokens.mask)
    difference = (tokens.logp.detach() - tokens.sampler) * tokens.mask
    if weighting.startswith("sequence"):
        difference = tokens.per_sequence(difference)[tokens.sequence]
    rho = difference.exp()
    if weighting.endswith("truncate"):
        return rho.clamp(max=objective.weight_cap)
    outside = (rho > objective.weight_cap) | (rho < objective.weight_floor)
    return torch.where(outside, 0.0, torch.ones_like(rho) if tokens.off_policy else rho)


def loss(objective: Objective, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Statistics]:
    """The micro-batch's share of the loss, a scalar with gradient, and its statistics.

    The shares of all micro-batches on all ranks add up to the loss of the whole batch. A trainer
    that averages gradients over its ranks multiplies by their number.
    """
    terms = _terms(objective, tokens)
    weight = weights(objective, tokens)
    per_token = -terms.surrogate * weight
    kl = torch.zeros_like(tokens.mask)
    if objective.beta:
        if tokens.reference is None:
            raise ConfigurationError(f"beta={objective.beta!r} needs a reference model's logp")
        gap = tokens.reference - tokens.logp
        kl = gap.exp() - gap - 1
        per_token = per_token + objective.beta * kl
    per_token = per_token * tokens.mask
    value = (per_token * _shares(objective, tokens, totals)).sum()
    with torch.no_grad():

        def total(values: torch.Tensor) -> float:
            return float((values.double() * tokens.mask).sum())

        statistics = Statistics(
            tokens=total(torch.ones_like(tokens.mask)),
            clipped=total(terms.clipped),
            kl=total(kl),
            off_policy=total((tokens.logp - tokens.sampler).abs()),
            weight=total(weight),
            masked=total(weight == 0),
        )
    return value, statistics


def _terms(objective: Objective, tokens: Tokens) -> _Terms:
    difference = tokens.logp - tokens.old
    advantages = tokens.advantages
    if objective.loss == "gspo":
        lengths = tokens.per_sequence(tokens.mask).clamp(min=1)
        difference = (tokens.per_sequence(difference * tokens.mask) / lengths)[tokens.sequence]
    ratio = difference.exp()
    high = 1 + objective.clip_high
    if objective.loss == "cispo":
        capped = ratio.detach().clamp(max=high)
        return _Terms(capped * advantages * tokens.logp, (ratio > high) & (advantages > 0))
    low = 1 - objective.clip_low
    surrogate = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = (ratio < low) & (advantages < 0) | (ratio > high) & (advantages > 0)
    return _Terms(surrogate, clipped)


def _shares(objective: Objective, tokens: Tokens, totals: Totals) -> torch.Tensor | float:
    """1 / D for each token, or for all of them."""
    match objective.loss:
        case "grpo" | "gspo":
            lengths = tokens.per_sequence(tokens.mask).clamp(min=1)[tokens.sequence]
            return 1 / (lengths * max(totals.sequences, 1.0))
        case "dr_grpo":
            assert objective.max_completion_tokens is not None
            return 1 / (max(totals.sequences, 1.0) * objective.max_completion_tokens)
        case "bnpo":
            return 1 / (tokens.mask.sum().clamp(min=1) * totals.micro_batches)
        case _:
            return 1 / max(totals.tokens, 1.0)
