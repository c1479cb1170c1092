"""The objective on numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.objective import Objective, Tokens, Totals, loss, weights

LN2 = math.log(2)


def tokens(
    logp: list[float], old: list[float] | None = None, sequence: list[int] | None = None
) -> Tokens:
    """Completions of the given tokens, advantage +1 for the first and -1 for the second."""
    current = torch.tensor(logp, requires_grad=True)
    before = current.detach() if old is None else torch.tensor(old)
    of = torch.tensor(sequence or [0] * len(logp))
    return Tokens(
        logp=current,
        old=before,
        sampler=before,
        advantages=torch.where(of == 0, 1.0, -1.0),
        mask=torch.ones(len(logp)),
        sequence=of,
        sequences=int(of.max()) + 1,
        off_policy=old is not None,
    )


# Completion 0 has one token, completion 1 has three; on policy, so that each J is its advantage.
FOUR = ([-1.0, -1.0, -1.0, -1.0], None, [0, 1, 1, 1])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grpo", -(1 / 1 - 3 / 3) / 2),
        ("gspo", -(1 / 1 - 3 / 3) / 2),
        ("dr_grpo", -(1 - 3) / (2 * 10)),
        ("dapo", -(1 - 3) / 4),
        ("bnpo", -(1 - 3) / 4),
        ("cispo", -(-1 + 3) / 4),  # J = A logp
    ],
)
def test_the_denominators(kind: str, expected: float) -> None:
    batch = tokens(*FOUR)
    objective = Objective(loss=kind, max_completion_tokens=10)  # type: ignore[arg-type] # parametrized
    value, _ = loss(objective, batch, Totals(2, batch.mask.sum().item()))
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_clipping_takes_the_gradient_away_on_the_side_that_gains() -> None:
    # ratios 2, 2, 0.5, 0.5 with advantages +, -, +, -
    batch = tokens([LN2, LN2, -LN2, -LN2], [0.0] * 4, [0, 1, 0, 1])
    objective = Objective(loss="dapo", clip_low=0.2, clip_high=0.28)
    value, statistics = loss(objective, batch, Totals(2, batch.mask.sum().item()))
    assert value.item() == pytest.approx(-(1.28 - 2 + 0.5 - 0.8) / 4)
    assert statistics["clip_fraction"] == 2
    value.backward()
    assert batch.logp.grad is not None
    torch.testing.assert_close(batch.logp.grad, torch.tensor([0.0, 2.0, -0.5, 0.0]) / 4)


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    batch = tokens([LN2, LN2], [0.0] * 2, [0, 1])
    value, statistics = loss(Objective(loss="cispo", clip_high=0.5), batch, Totals(2, 2))
    value.backward()
    assert batch.logp.grad is not None
    torch.testing.assert_close(batch.logp.grad, torch.tensor([-1.5, 1.5]) / 2)
    assert statistics["clip_fraction"] == 1


def test_gspo_has_one_ratio_a_completion() -> None:
    # log-ratios 0.2 and 0: the completion's is exp(0.1).
    batch = tokens([0.2, 0.0], [0.0, 0.0], [0, 0])
    value, _ = loss(Objective(loss="gspo"), batch, Totals(1, 2))
    assert value.item() == pytest.approx(-math.exp(0.1))


def test_the_kl_term_is_k3() -> None:
    batch = replace(tokens([-1.0, -1.0]), reference=torch.tensor([-1.0 + LN2, -1.0]))
    value, statistics = loss(Objective(loss="dapo", beta=0.1), batch, Totals(1, 2))
    k3 = 2 - LN2 - 1
    assert value.item() == pytest.approx((-2 + 0.1 * k3) / 2)
    assert statistics["kl"] == pytest.approx(k3)


def test_masked_tokens_carry_no_loss_and_no_gradient() -> None:
    batch = replace(tokens([-1.0, -1.0, -1.0]), mask=torch.tensor([1.0, 0.0, 1.0]))
    batch = replace(batch, sampler=torch.tensor([-1.0, math.nan, -1.0]))  # a tool's have none
    batch = replace(batch, sampler=torch.nan_to_num(batch.sampler))
    value, statistics = loss(Objective(loss="grpo"), batch, Totals(1, 2))
    value.backward()
    assert value.item() == pytest.approx(-1)
    assert statistics["tokens"] == 2
    assert batch.logp.grad is not None
    assert batch.logp.grad[1] == 0


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("token_truncate", [2.0, 3.0, 0.5]),
        ("token_mask", [2.0, 0.0, 0.5]),
        ("sequence_truncate", [3.0, 3.0, 0.5]),
        ("sequence_mask", [0.0, 0.0, 0.5]),
    ],
)
def test_the_weights_of_an_off_policy_sampler(weighting: str, expected: list[float]) -> None:
    batch = tokens([0.0, 0.0, 0.0], None, [0, 0, 1])
    batch = replace(batch, sampler=torch.tensor([-LN2, -2 * LN2, LN2]))
    objective = Objective(weighting=weighting, weight_cap=3.0)  # type: ignore[arg-type] # parametrized
    torch.testing.assert_close(weights(objective, batch), torch.tensor(expected))


def test_the_decoupled_objective() -> None:
    # old / sampler: 2, 4, 1/2; policy / old: 3/2, 1, 1/2; advantages +, +, -
    sampler = torch.tensor([-3.0, -3.0, -3.0])
    old = sampler + torch.tensor([LN2, 2 * LN2, -LN2])
    current = old + torch.tensor([math.log(1.5), 0.0, -LN2])
    batch = replace(tokens(current.tolist(), None, [0, 0, 1]), old=old, sampler=sampler)
    objective = Objective(loss="dapo", clip_low=0.2, clip_high=0.28, weight_cap=3.0)
    value, statistics = loss(objective, batch, Totals(2, batch.mask.sum().item()))
    # Weights 2, 3 (truncated) and 1/2; surrogates 1.28 (clipped), 1 and -0.8 (clipped).
    assert value.item() == pytest.approx(-(2 * 1.28 + 3 * 1 - 0.5 * 0.8) / 3, rel=1e-5)
    assert statistics["clip_fraction"] == 2
    value.backward()
    torch.testing.assert_close(batch.logp.grad, torch.tensor([0.0, -1.0, 0.0]))


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "cispo", "gspo"])
def test_shares_of_micro_batches_add_up_to_the_batchs_loss(kind: str) -> None:
    logp = [-1.0, -0.5, -2.0, -0.1, -0.7]
    old = [-1.1, -0.5, -1.5, -0.3, -0.6]
    objective = Objective(loss=kind, max_completion_tokens=10)  # type: ignore[arg-type] # parametrized
    whole = tokens(logp, old, [0, 0, 1, 1, 1])
    totals = Totals(2, whole.mask.sum().item())
    value, _ = loss(objective, whole, totals)
    first = tokens(logp[:2], old[:2], [0, 0])
    second = tokens(logp[2:], old[2:], [0, 0, 0])
    second = replace(second, advantages=-second.advantages)
    parts = loss(objective, first, totals)[0] + loss(objective, second, totals)[0]
    assert parts.item() == pytest.approx(value.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"loss": "ppo"}, "loss='ppo': use one of grpo"),
        ({"weighting": "tis"}, "weighting='tis'"),
        ({"clip_low": 0.0}, "clip_low=0.0"),
        ({"clip_low": 1.5}, "clip_low=1.5"),
        ({"beta": -1.0}, "beta=-1.0"),
        ({"loss": "dr_grpo"}, "max_completion_tokens: set it"),
    ],
)
def test_constants_that_make_no_sense_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Objective(**options)  # type: ignore[arg-type] # wrong on purpose
