"""One optimizer step on a batch of rollouts, on one process or on many with FSDP2."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.model import Sequences, logp_of
from sandboxkit.integrations.grpo.objective import Objective, Tokens, Totals, loss
from sandboxkit.integrations.grpo.packing import pack, spread
from sandboxkit.integrations.grpo.ranks import rank_count, this_rank

__all__ = ["Sample", "StepReport", "train_step"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout as the trainer needs it."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Token ids exactly as sampled; a tool's tokens in between included."""
    mask: tuple[bool, ...]
    """For each completion token whether the policy wrote it."""
    sampler_logp: tuple[float, ...]
    """What the sampler reported for each completion token; 0.0 for a tool's."""
    advantage: float

    def __post_init__(self) -> None:
        if not self.prompt or not self.completion:
            raise ConfigurationError("a sample needs a prompt token and a completion token")
        if not len(self.completion) == len(self.mask) == len(self.sampler_logp):
            raise ConfigurationError(
                f"a completion of {len(self.completion)} tokens has a mask of {len(self.mask)} "
                f"and {len(self.sampler_logp)} log-probabilities"
            )

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimizer step did, over all ranks."""

    loss: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Completion tokens that carried a loss."""
    clip_fraction: float
    entropy: float
    """Nats a token."""
    kl: float
    off_policy: float
    """Mean of |trainer's logp - sampler's logp| a token."""
    weight: float
    """Mean importance weight a token."""


def train_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    objective: Objective,
    *,
    max_tokens_per_row: int,
    max_grad_norm: float = 1.0,
    temperature: float = 1.0,
    reference: PreTrainedModel | None = None,
) -> StepReport:
    """Update the model once from `samples`, the same list on every rank.

    Each rank takes its share of them, in packed rows. All ranks do as many passes as the busiest
    one, for FSDP's collectives are matched: who has no row left repeats one without a loss.
    `reference` is the model of the KL term, sharded as the other is.
    A batch with no sample, or none of whose tokens carries a loss, is refused with
    ConfigurationError.
    """
    ranks, rank = rank_count(), this_rank()
    lengths = [len(sample) for sample in samples]
    rows = [pack(lengths, max_tokens_per_row, mine) for mine in spread(lengths, ranks)]
    passes = max(map(len, rows))
    written = sum(sum(sample.mask) for sample in samples)
    if not written:
        raise ConfigurationError("no token of the batch carries a loss: nothing to train on")
    totals = Totals(len(samples), written, passes)
    sums = torch.zeros(7, dtype=torch.float64, device=model.device)
    for number in range(passes):
        idle = number >= len(rows[rank])
        row = [samples[index] for index in ([0] if idle else rows[rank][number])]
        sums += _backward(model, row, objective, totals, ranks, temperature, idle, reference)
    if ranks > 1:
        dist.all_reduce(sums)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    share, tokens, clipped, kl, off_policy, weight, entropy = sums.tolist()
    return StepReport(
        loss=share,
        grad_norm=(norm.full_tensor() if isinstance(norm, DTensor) else norm).item(),
        tokens=round(tokens),
        clip_fraction=clipped / tokens,
        entropy=entropy / tokens,
        kl=kl / tokens,
        off_policy=off_policy / tokens,
        weight=weight / tokens,
    )


def _backward(
    model: PreTrainedModel,
    row: Sequence[Sample],
    objective: Objective,
    totals: Totals,
    ranks: int,
    temperature: float,
    idle: bool,
    reference: PreTrainedModel | None,
) -> torch.Tensor:
    """Accumulate one row's gradient; returns its sums in the order `train_step` takes them apart."""
    packed = Sequences(
        [sample.prompt + sample.completion for sample in row],
        [len(sample.prompt) for sample in row],
    )
    logp, entropy = logp_of(model, packed, temperature=temperature)
    known = None
    if reference is not None:
        with torch.no_grad():
            known, _ = logp_of(reference, packed, temperature=temperature)
    tokens = _tokens(row, logp, known)
    value, seen = loss(objective, tokens, totals)
    if idle:
        (value * 0.0).backward()
        return torch.zeros(7, dtype=torch.float64, device=logp.device)
    # FSDP averages gradients over its ranks; the totals are already those of all.
    (value * ranks).backward()
    written = (entropy.double() * tokens.mask).sum().item()
    sums = [value.item(), seen.tokens, seen.clipped, seen.kl, seen.off_policy, seen.weight, written]
    return torch.tensor(sums, dtype=torch.float64, device=logp.device)


def _tokens(row: Sequence[Sample], logp: torch.Tensor, reference: torch.Tensor | None) -> Tokens:
    def flat(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logp.device)

    sizes = [len(sample.completion) for sample in row]
    numbers = torch.arange(len(row), device=logp.device)
    return Tokens(
        logp=logp,
        old=logp.detach(),
        sampler=flat([value for sample in row for value in sample.sampler_logp]),
        advantages=flat(
            [s.advantage for s, size in zip(row, sizes, strict=True) for _ in range(size)]
        ),
        mask=flat([float(value) for sample in row for value in sample.mask]),
        sequence=numbers.repeat_interleave(torch.tensor(sizes, device=logp.device)),
        sequences=len(row),
        reference=reference,
    )
