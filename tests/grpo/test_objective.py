"""The objective and the advantages on numbers worked out by hand; test_against_trl.py compares every loss."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.advantages import group_advantages
from sandboxkit.integrations.grpo.objective import Objective, Tokens, Totals, loss, weights

CASES = tomllib.loads((Path(__file__).parent / "objective.toml").read_text())
LN2 = math.log(2)
NAN = math.nan
Floats = list[float]


def tokens(logp: Floats, old: Floats | None = None, sequence: list[int] | None = None) -> Tokens:
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


@pytest.mark.parametrize("case", CASES["loss"], ids=lambda case: case["name"])
def test_a_loss_is_the_one_worked_out_by_hand(case: dict[str, Any]) -> None:
    batch = tokens(case["logp"], case.get("old"), case.get("sequence"))
    names = case.keys() & {"reference", "mask", "sampler"}
    batch = replace(batch, **{name: torch.tensor(case[name]) for name in names})
    value, statistics = loss(Objective(**case["objective"]), batch, Totals(*case["totals"]))
    value.backward()
    assert value.item() == pytest.approx(case.get("value", value.item()))
    if "gradient" in case:
        torch.testing.assert_close(batch.logp.grad, torch.tensor(case["gradient"]))
    found = {name: statistics[name] for name in case["statistics"]}
    assert found == pytest.approx(case["statistics"])


@pytest.mark.parametrize("case", CASES["weights"], ids=lambda case: str(case["options"]))
def test_the_weights_against_a_sampler(case: dict[str, Any]) -> None:
    batch, expected = tokens([0.0, 0.0, 0.0], None, [0, 0, 1]), case["expected"]
    batch = replace(batch, sampler=torch.tensor([-LN2, -2 * LN2, LN2]))
    objective = Objective(weight_cap=3.0, **case["options"])
    torch.testing.assert_close(weights(objective, batch), torch.tensor(expected))
    # Against the sampler the ratio has rho in it: what is left of a mask is 1.
    against = replace(batch, old=batch.sampler, off_policy=True)
    if not str(objective.weighting).endswith("truncate"):
        kept = [float(value > 0) for value in expected]
        assert weights(objective, against).tolist() == kept


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "cispo", "gspo"])
def test_shares_of_micro_batches_add_up_to_the_batchs_loss(kind: Any) -> None:
    logp = [-1.0, -0.5, -2.0, -0.1, -0.7]
    old = [-1.1, -0.5, -1.5, -0.3, -0.6]
    objective = Objective(loss=kind, max_completion_tokens=10)
    whole = tokens(logp, old, [0, 0, 1, 1, 1])
    totals = Totals(2, whole.mask.sum().item())
    value, _ = loss(objective, whole, totals)
    first = tokens(logp[:2], old[:2], [0, 0])
    second = tokens(logp[2:], old[2:], [0, 0, 0])
    second = replace(second, advantages=-second.advantages)
    parts = loss(objective, first, totals)[0] + loss(objective, second, totals)[0]
    assert parts.item() == pytest.approx(value.item(), rel=1e-6)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["says"])
def test_constants_that_make_no_sense_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=case["says"]):
        Objective(**case["options"])


@pytest.mark.parametrize("case", CASES["advantages"], ids=lambda case: case["name"])
def test_advantages_are_those_worked_out_by_hand(case: dict[str, Any]) -> None:
    found = group_advantages(torch.tensor(case["rewards"]), **case["options"])
    torch.testing.assert_close(found, torch.tensor(case["expected"]))


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_a_masked_sample_has_no_advantage_and_changes_no_other(scale: Any) -> None:
    whole = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    failed = torch.tensor([[1.0, NAN, 0.0, 1.0], [0.0, 1.0, 0.0, NAN]])
    expected = group_advantages(whole, scale=scale)
    found = group_advantages(failed, scale=scale)
    torch.testing.assert_close(found[0], expected[0][[0, 0, 1, 2]] * torch.tensor([1, 0, 1, 1]))
    torch.testing.assert_close(found[1], torch.cat([expected[1], torch.zeros(1)]))
    alone = torch.tensor([[1.0, NAN, NAN], [NAN, NAN, NAN], [1.0, 0.0, 1.0]])
    found = group_advantages(alone, scale=scale)
    assert torch.equal(found[:2], torch.zeros(2, 3))
    assert found.isfinite().all()
