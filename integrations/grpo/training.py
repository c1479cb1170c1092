"""One optimizer step on a batch of rollouts, on one process or on many with FSDP2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.attention import longest_packed, shares
from sandboxkit.integrations.grpo.model import Sequences, logp_of
from sandboxkit.integrations.grpo.objective import Objective, Tokens, Totals, loss
from sandboxkit.integrations.grpo.packing import alike, pack, spread
from sandboxkit.integrations.grpo.ranks import gathered, rank_count, this_rank

__all__ = ["StepReport", "TrainingSample", "score", "train_step"]

_SUMS = ("loss", "tokens", "clip_fraction", "entropy", "kl", "off_policy", "weight", "masked")
"""The fields of StepReport that each pass adds to; one all-reduce sums them over the ranks."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One rollout as training data."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    """Token ids exactly as sampled, including the tools' tokens."""
    mask: tuple[bool, ...]
    """Whether the policy wrote each completion token."""
    sampler_logp: tuple[float, ...]
    """The sampler's log-probability of each completion token; 0.0 for a tool's token."""
    advantage: float
    old_logp: tuple[float, ...] | None = None
    """The trainer's log-probabilities before the first update of the batch; None: the ratio is
    against the sampler off policy, and 1 on policy."""

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
    """The results of one optimizer step, over all ranks; means are per completion token with a loss."""

    loss: float
    grad_norm: float
    """Gradient norm before clipping."""
    tokens: int
    """Number of completion tokens with a loss."""
    clip_fraction: float
    entropy: float
    """Entropy in nats."""
    kl: float
    off_policy: float
    """|trainer's logp - sampler's logp|."""
    weight: float
    """Importance weight."""
    masked: float
    """Share of tokens with importance weight 0."""
    skipped: bool
    """Whether the step changed nothing because the loss or the gradient was not finite."""


def train_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[TrainingSample],
    objective: Objective,
    *,
    max_tokens_per_row: int,
    max_grad_norm: float = 1.0,
    temperature: float = 1.0,
    reference: PreTrainedModel | None = None,
    off_policy: bool = False,
    autocast: bool = False,
) -> StepReport:
    """Update the model once from `samples`, the same list on every rank.

    Equal sequences are computed once, and so is a prompt shared within a row if the model's attention
    allows it. Each rank computes its share in packed rows. FSDP's collectives must match, so all
    ranks do as many passes as the busiest one; a rank without rows left repeats one without a loss.
    `reference` is the model of the KL term, sharded like `model`. With `off_policy` the ratio's
    denominator is the sampler, else the samples' `old_logp` if they have it. `autocast` computes in
    bfloat16 where FSDP does not. A step whose loss or gradient is not finite changes nothing. Raises
    ConfigurationError for a batch without samples or without any token that carries a loss.
    """
    ranks, rank = rank_count(), this_rank()
    different = _different(samples)
    rows = _rows(model, different, max_tokens_per_row)
    written = sum(sum(sample.mask) for sample in samples)
    if not written:
        raise ConfigurationError("no token of the batch carries a loss: nothing to train on")
    totals = Totals(len(samples), written, sum(map(len, rows)))
    sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=model.device)
    for number in range(max(map(len, rows))):
        idle = number >= len(rows[rank])
        row = [different[index] for index in ([0] if idle else rows[rank][number])]
        logp, entropy = _forward(model, row, temperature, autocast)
        known = None
        if reference is not None:
            with torch.no_grad():
                known, _ = _forward(reference, row, temperature, autocast)
        tokens = _tokens([sample for equal in row for sample in equal], logp, known, off_policy)
        value, seen = loss(objective, tokens, totals)
        # FSDP averages gradients over ranks, but the totals already cover all ranks.
        (value * (0.0 if idle else ranks)).backward()
        if not idle:
            seen |= {"loss": value.item(), "entropy": (entropy.double() * tokens.mask).sum().item()}
            sums += torch.tensor([seen[n] for n in _SUMS], dtype=sums.dtype).to(sums.device)
    if ranks > 1:
        dist.all_reduce(sums)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    length = (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
    share, count, *rest = sums.tolist()
    finite = math.isfinite(share) and math.isfinite(length)
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    means = dict(zip(_SUMS[2:], (each / count for each in rest), strict=True))
    return StepReport(share, length, round(count), **means, skipped=not finite)


def score(
    model: PreTrainedModel,
    samples: Sequence[TrainingSample],
    *,
    max_tokens_per_row: int,
    temperature: float = 1.0,
    autocast: bool = False,
) -> list[tuple[float, ...]]:
    """Return the model's log-probability of each completion token, in nats, for each sample.

    All ranks call this with the same samples, and all get the whole result.
    """
    different, rank = _different(samples), this_rank()
    rows = _rows(model, different, max_tokens_per_row)
    own = dict[int, tuple[float, ...]]()
    for number in range(max(map(len, rows))):
        idle = number >= len(rows[rank])
        row = [0] if idle else rows[rank][number]
        with torch.no_grad():
            alone = [different[i][:1] for i in row]
            logp, _ = _forward(model, alone, temperature, autocast)
        parts = logp.split([len(equal[0].completion) for equal in alone])
        if not idle:
            own |= {i: tuple(part.tolist()) for i, part in zip(row, parts, strict=True)}
    if isinstance(model, FSDPModule):
        model.reshard()  # only a backward pass would do that for the root
    all_ranks = {i: values for each in gathered(own) for i, values in each.items()}
    known = {_key(equal[0]): all_ranks[i] for i, equal in enumerate(different)}
    return [known[_key(sample)] for sample in samples]


def _rows(
    model: PreTrainedModel, different: Sequence[Sequence[TrainingSample]], budget: int
) -> list[list[list[int]]]:
    """Return the packed rows of each rank, as indices of `different`."""
    ranks = rank_count()
    lengths = [len(equal[0]) for equal in different]
    units, costs = [[index] for index in range(len(different))], lengths
    if shares(model, max(lengths, default=0)):
        # With several ranks, units must be small enough to balance the load.
        most = budget if ranks == 1 else sum(lengths) // (4 * ranks)
        prompts = [equal[0].prompt for equal in different]
        units, costs = alike(prompts, lengths, min(most, budget))
    longest, rows = longest_packed(model), list[list[list[int]]]()
    for mine in spread(costs, ranks):
        alone = [[unit] for unit in mine if lengths[units[unit][0]] > longest]
        short = [unit for unit in mine if lengths[units[unit][0]] <= longest]
        of_units = [*alone, *pack(costs, budget, short)]
        rows.append([[index for unit in row for index in units[unit]] for row in of_units])
    return rows


def _key(sample: TrainingSample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sample.prompt, sample.completion


def _different(samples: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
    """Group the samples by equal sequences, in order of first occurrence."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TrainingSample]] = {}
    for sample in samples:
        found.setdefault(_key(sample), []).append(sample)
    return list(found.values())


def _forward(
    model: PreTrainedModel,
    row: Sequence[Sequence[TrainingSample]],
    temperature: float,
    autocast: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of a row's samples, [tokens]; equal ones are computed once."""
    packed = Sequences(
        [equal[0].prompt + equal[0].completion for equal in row],
        [len(equal[0].prompt) for equal in row],
    )
    with torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
        logp, entropy = logp_of(model, packed, temperature=temperature)
    places = torch.arange(len(logp), device=logp.device).split([len(e[0].completion) for e in row])
    copies = torch.cat([p for p, e in zip(places, row, strict=True) for _ in e])
    return logp[copies], entropy[copies]


def _tokens(
    row: Sequence[TrainingSample],
    logp: torch.Tensor,
    reference: torch.Tensor | None,
    off_policy: bool,
) -> Tokens:
    def flat(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logp.device)

    sizes = [len(sample.completion) for sample in row]
    numbers = torch.arange(len(row), device=logp.device)
    sampler = flat([value for sample in row for value in sample.sampler_logp])
    old = sampler if off_policy else logp.detach()
    if not off_policy and all(sample.old_logp is not None for sample in row):
        old = flat([value for sample in row for value in sample.old_logp or ()])
    return Tokens(
        logp=logp,
        old=old,
        sampler=sampler,
        advantages=flat(
            [s.advantage for s, size in zip(row, sizes, strict=True) for _ in range(size)]
        ),
        mask=flat([float(value) for sample in row for value in sample.mask]),
        sequence=numbers.repeat_interleave(torch.tensor(sizes, device=logp.device)),
        sequences=len(row),
        reference=reference,
        off_policy=off_policy,
    )
