"""The objective: pure functions from log-probabilities and advantages to a loss.

For token t of completion i, with advantage A_i and log-probabilities under the policy being
trained (logp), under the policy that the ratio is against (old), under the sampler that wrote the
completion (sampler) and under a reference (ref), the loss is

    L = sum over tokens  ( -w_it J_it + beta k3_it )  / D

    r_it  = exp(logp_it - old_it)
    J_it  = min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)       all but cispo
    J_it  = max(J_it, dual_clip A_i) where A_i < 0                           dual clip, arXiv:1912.09729
    k3_it = exp(ref_it - logp_it) - (ref_it - logp_it) - 1                   Schulman's estimator

| loss | what differs | D, the denominator | paper |
|---|---|---|---|
| grpo | | (tokens of i) x (completions) | arXiv:2402.03300 |
| dr_grpo | | (completions) x max_completion_tokens | arXiv:2503.20783 |
| dapo | clip_high > clip_low ("clip higher") | all tokens of the global batch | arXiv:2503.14476 |
| bnpo | | tokens of the micro-batch, then the mean over micro-batches | TRL's name |
| cispo | J = stop_gradient(min(r, 1 + clip_high)) A logp | as dapo | arXiv:2506.13585 |
| gspo | r_i = exp(mean over t of (logp - old)), one a completion | as grpo | arXiv:2507.18071 |

Off policy, with completions of older weights (`buffer.lag`) or more than one optimizer step per
batch (`epochs`, `optimizer.minibatch`), there are two choices. With `old="sampler"`, the ratio is
policy / sampler, and clipping bounds it. With `old="trainer"`, old is the trainer's own
log-probability before the first update of the batch: the ratio and its clipping measure the updates
alone, as in PPO, and w corrects from the sampler to old (the decoupled objective, arXiv:2505.24298).
On policy, old = stop_gradient(logp): the ratio is 1 and clipping never acts. Trainer and sampler still
compute slightly different probabilities from the same weights; w bounds that difference. With
rho = exp(old - sampler), or exp(logp - sampler) with `old="sampler"`, without gradient, of the token or,
for sequence_*, the product over its completion:

| weighting | w on policy, and with old="trainer" | w with old="sampler": the ratio has rho in it | paper |
|---|---|---|---|
| none | 1 | 1 | |
| *_truncate | min(rho, weight_cap) | refused: rho would count twice | arXiv:2508.03219 |
| *_mask | rho; 0 outside of weight_floor to weight_cap | 1; 0 outside | arXiv:2510.18855 |

Departures from the papers. DAPO's dynamic sampling and soft overlong punishment are not part of the
loss: the buffer replaces groups of equal rewards, and `mask_truncated` drops truncated completions.
CISPO has no lower bound here, as in its authors' experiments. GSPO's gradient is that of the
sequence-level ratio (GSPO-token is not implemented). The denominators count the whole batch of an
optimizer step, over all ranks and micro-batches, and are known before the first backward pass. So
the gradient depends neither on the number of ranks nor on the packing.

Tokens are flat, of shape [tokens], completion by completion as packing produces them; `sequence` maps
each token to its completion in the micro-batch.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.config_values import check

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

_CLIPS = {"gspo": (3e-4, 4e-4), "cispo": (0.2, 4.0)}
"""The default clip_low and clip_high of a loss: those of GSPO's paper, and of ScaleRL (arXiv:2510.13786)."""
_MOST = 20.0
"""The logarithm of the largest ratio: e^89 would be infinite, and the gradient of a clipped one not a number."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The choice of loss, and its constants."""

    loss: LossKind = "dapo"
    clip_low: Annotated[float | None, "a share above 0, up to 1"] = None
    """None: 0.2; gspo 3e-4."""
    clip_high: Annotated[float | None, "a number above 0"] = None
    """None: 0.28; gspo 4e-4; cispo 4."""
    dual_clip: Annotated[float | None, "a number above 1"] = 3.0
    """Bounds the loss of a token with a negative advantage that the policy now prefers; None: no bound."""
    beta: Annotated[float, "0 or more"] = 0.0
    """Weight of the KL term. With 0 no reference model is needed."""
    weighting: Weighting | None = None
    """Importance weighting against the sampler. None: token_truncate on policy, none off policy."""
    weight_cap: Annotated[float, "a number above 0"] = 3.0
    weight_floor: float = 0.0
    """Lower bound of rho for *_mask."""
    old: Literal["sampler", "trainer"] = "sampler"
    """The ratio's denominator off policy. trainer: costs one more forward pass per batch."""
    epochs: Annotated[int, "1 or more"] = 1
    """Number of passes over each batch; without `optimizer.minibatch`, of optimizer steps."""
    mask_truncated: bool = False
    """Drop completions truncated at max_completion_tokens (DAPO's overlong filtering)."""
    max_completion_tokens: int | None = None
    """The denominator of dr_grpo."""

    def __post_init__(self) -> None:
        check(self)
        if not 0 <= self.weight_floor < self.weight_cap:
            raise ConfigurationError(
                f"weight_floor={self.weight_floor!r}: give 0 or more, below weight_cap"
            )
        if self.weight_floor and not (self.weighting or "").endswith("mask"):
            raise ConfigurationError(
                f"weight_floor={self.weight_floor!r} does nothing with weighting="
                f"{self.weighting!r}: use token_mask or sequence_mask"
            )
        if self.loss == "dr_grpo" and not self.max_completion_tokens:
            raise ConfigurationError("loss='dr_grpo' divides by max_completion_tokens: set it")

    @property
    def bounds(self) -> tuple[float, float]:
        """The ratio's lower and upper bound."""
        low, high = _CLIPS.get(self.loss, (0.2, 0.28))
        return (
            1 - (low if self.clip_low is None else self.clip_low),
            1 + (high if self.clip_high is None else self.clip_high),
        )

    def under(self, *, off_policy: bool, updates: bool = False) -> "Objective":
        """Return the objective with its default weighting filled in.

        `off_policy`: the ratio is against the sampler. `updates`: a batch has several updates. Raises
        ConfigurationError for a setting that has no effect or would count rho twice.
        """
        if not off_policy and not updates:
            clips = {"clip_low": self.clip_low, "clip_high": self.clip_high}
            idle = [f"{name}={value!r}" for name, value in clips.items() if value is not None]
            if self.loss in ("cispo", "gspo"):
                idle.append(f"loss={self.loss!r}")
            if idle:
                raise ConfigurationError(
                    f"{', '.join(idle)}: on policy the ratio is 1, and neither clipping nor how the "
                    "ratio is made does anything; set objective.epochs, optimizer.minibatch or, against the "
                    "sampler, buffer.lag, or leave it out"
                )
        elif off_policy and (self.weighting or "").endswith("truncate"):
            raise ConfigurationError(
                f"weighting={self.weighting!r} counts the sampler twice where the ratio is against "
                "it (buffer.lag or objective.epochs): use none, token_mask or sequence_mask, or "
                "objective.old='trainer'"
            )
        return replace(
            self, weighting=self.weighting or ("none" if off_policy else "token_truncate")
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """The completion tokens of one micro-batch; tensors have the shape [tokens]."""

    logp: torch.Tensor
    """Log-probability under the policy being trained, with gradient."""
    old: torch.Tensor
    """The ratio's denominator: `sampler` if `off_policy`, else the trainer's own before the batch's first
    update, which is `logp.detach()` on policy."""
    sampler: torch.Tensor
    """Log-probability reported by the sampler."""
    advantages: torch.Tensor
    """Advantage of the token's completion."""
    mask: torch.Tensor
    """1.0 for tokens of the policy, 0.0 for those of a tool and for padding."""
    sequence: torch.Tensor
    """Index of the token's completion in the micro-batch, int64, from 0."""
    sequences: int
    """Number of completions in the micro-batch."""
    reference: torch.Tensor | None = None
    off_policy: bool = False
    """Whether the ratio's denominator is the sampler."""

    def per_sequence(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of shape [tokens] per completion; return [sequences]."""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole batch of an optimizer step, on all ranks together."""

    sequences: float
    tokens: float
    micro_batches: float = 1.0
    """Number of micro-batches; used only by bnpo."""


Statistics = dict[str, float]
"""Sums over the tokens of a micro-batch. Divide their total by the total of `tokens` for means.

`clip_fraction`: 1 for a token without gradient because of clipping. `kl`: k3 against the reference.
`off_policy`: |logp - sampler|, the distance between trainer and sampler. `weight`: importance weight.
`masked`: 1 for a token with weight 0.
"""


def weights(objective: Objective, tokens: Tokens) -> torch.Tensor:
    """Return each token's importance weight, [tokens]: w in the table above, without gradient."""
    weighting = objective.weighting or ("none" if tokens.off_policy else "token_truncate")
    if weighting == "none":
        return torch.ones_like(tokens.mask)
    start = tokens.logp.detach() if tokens.off_policy else tokens.old
    difference = (start - tokens.sampler) * tokens.mask
    if weighting.startswith("sequence"):
        difference = tokens.per_sequence(difference)[tokens.sequence]
    rho = difference.exp()
    if weighting.endswith("truncate"):
        return rho.clamp(max=objective.weight_cap)
    outside = (rho > objective.weight_cap) | (rho < objective.weight_floor)
    return torch.where(outside, 0.0, torch.ones_like(rho) if tokens.off_policy else rho)


def loss(objective: Objective, tokens: Tokens, totals: Totals) -> tuple[torch.Tensor, Statistics]:
    """Return the micro-batch's share of the loss, a scalar with gradient, and its statistics.

    The shares of all micro-batches on all ranks add up to the loss of the whole batch. If gradients
    are averaged over ranks, the trainer must multiply the loss by the number of ranks.
    """
    surrogate, clipped = _surrogate(objective, tokens)
    weight = weights(objective, tokens)
    per_token = -surrogate * weight
    kl = torch.zeros_like(tokens.mask)
    if objective.beta:
        assert tokens.reference is not None
        gap = tokens.reference - tokens.logp
        kl = gap.exp() - gap - 1
        per_token = per_token + objective.beta * kl
    per_token = per_token * tokens.mask
    value = (per_token * _shares(objective, tokens, totals)).sum()
    with torch.no_grad():
        sums = {
            "tokens": torch.ones_like(kl),
            "clip_fraction": clipped,
            "kl": kl,
            "off_policy": (tokens.logp - tokens.sampler).abs(),
            "weight": weight,
            "masked": weight == 0,
        }
        return value, {n: float((v.double() * tokens.mask).sum()) for n, v in sums.items()}


def _surrogate(objective: Objective, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Return J, and whether clipping takes the gradient away, both per token."""
    difference = tokens.logp - tokens.old
    advantages = tokens.advantages
    if objective.loss == "gspo":
        lengths = tokens.per_sequence(tokens.mask).clamp(min=1)
        difference = (tokens.per_sequence(difference * tokens.mask) / lengths)[tokens.sequence]
    ratio = difference.clamp(max=_MOST).exp()
    low, high = objective.bounds
    if objective.loss == "cispo":
        capped = ratio.detach().clamp(max=high)
        return capped * advantages * tokens.logp, (ratio > high) & (advantages > 0)
    surrogate = torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = (ratio < low) & (advantages < 0) | (ratio > high) & (advantages > 0)
    if objective.dual_clip is not None:
        beyond = (ratio > objective.dual_clip) & (advantages < 0)
        surrogate = torch.where(beyond, objective.dual_clip * advantages, surrogate)
        clipped = clipped | beyond
    return surrogate, clipped


def _shares(objective: Objective, tokens: Tokens, totals: Totals) -> torch.Tensor | float:
    """Return 1 / D, per token or as one number for all."""
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
