"""The same batch through TRL's own loss and through ours: the same number, the same gradient."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit.integrations.grpo.objective import Objective, Tokens, Totals, loss
from tests.trl.tiny import trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds

SEQUENCES, LENGTH = 4, 6
CLIPPED = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0}


def batch() -> dict[str, torch.Tensor]:
    """Four completions of unequal lengths, off policy far enough that some tokens are clipped."""
    numbers = torch.Generator().manual_seed(7)
    old = -torch.rand(SEQUENCES, LENGTH, generator=numbers) * 2
    mask = (torch.arange(LENGTH) < torch.tensor([[6], [1], [4], [3]])).long()
    return {
        "logp": old + 0.5 * torch.randn(SEQUENCES, LENGTH, generator=numbers),
        "old": old,
        "reference": old + 0.3 * torch.randn(SEQUENCES, LENGTH, generator=numbers),
        "advantages": torch.tensor([1.3, -0.4, 0.2, -1.1]),
        "mask": mask,
    }


def theirs(folder: Path, given: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    """TRL's loss; its gradient is left in given["logp"]."""
    beta = options.pop("beta")  # given to the trainer, it would load a reference model by name
    config = {"max_completion_length": LENGTH, **options}
    rewards = [lambda completions, **_: [0.0] * len(completions)]
    subject = trainer(folder, [{"prompt": "a"}] * 16, reward_funcs=rewards, config=config)
    subject.beta = beta
    subject.use_vllm = "ratio" in given  # set later: it would look for a server
    subject.current_gradient_accumulation_steps = 1
    known = given["logp"].requires_grad_(), torch.zeros(SEQUENCES, LENGTH), None
    subject._get_per_token_logps_and_entropies = lambda *_, **__: known
    ids = torch.full((SEQUENCES, LENGTH), 2)
    value: torch.Tensor = subject._compute_loss(
        subject.model.train(),
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones(SEQUENCES, 1, dtype=torch.long),
            "completion_ids": ids,
            "completion_mask": given["mask"],
            "advantages": given["advantages"],
            "old_per_token_logps": given["old"],
            "ref_per_token_logps": given["reference"],
            "num_items_in_batch": given["mask"].sum(),
            "importance_sampling_ratio": given.get("ratio"),
        },
    )
    value.backward()
    return value.detach()


def ours(given: dict[str, torch.Tensor], objective: Objective, off_policy: bool) -> Any:
    written = given["mask"].bool()
    sequence = torch.arange(SEQUENCES)[:, None].expand(-1, LENGTH)[written]
    logp = given["logp"].detach()[written].requires_grad_()
    tokens = Tokens(
        logp=logp,
        old=given["old"][written],
        sampler=given.get("sampler", given["old"])[written],
        advantages=given["advantages"][sequence],
        mask=torch.ones(len(sequence)),
        sequence=sequence,
        sequences=SEQUENCES,
        reference=given["reference"][written],
        off_policy=off_policy,
    )
    value, _ = loss(objective, tokens, Totals(SEQUENCES, tokens.mask.sum().item()))
    value.backward()
    return value.detach(), logp.grad


CASES: dict[str, tuple[Objective, dict[str, Any]]] = {
    "grpo": (Objective("grpo"), {}),
    "reference": (Objective("grpo", beta=0.04), {"beta": 0.04, "use_bias_correction_kl": False}),
    "dapo": (Objective("dapo"), {}),
    "bnpo": (Objective("bnpo"), {}),
    "dr_grpo": (Objective("dr_grpo", max_completion_tokens=LENGTH), {}),
    # TRL's bound is the ratio itself, ours what it may be above 1.
    "cispo": (Objective("cispo", clip_high=0.3), {"epsilon_high": 1.3}),
    "gspo": (
        Objective("gspo"),
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
        },
    ),
    "dual_clip": (Objective("dapo", dual_clip=1.4), {"delta": 1.4}),
}


DECOUPLED = [("grpo", True), ("dapo", True), ("dr_grpo", True)]


@pytest.mark.parametrize(("name", "decoupled"), [*((name, False) for name in CASES), *DECOUPLED])
def test_loss_and_gradient_equal(name: str, decoupled: bool, tmp_path: Path) -> None:
    """Also with an old policy of the trainer's own, and truncated weights from the sampler to it."""
    (objective, options), given = CASES[name], batch()
    objective = replace(objective, weighting="none")
    if decoupled:
        noise = 0.8 * torch.randn(given["old"].shape, generator=torch.Generator().manual_seed(3))
        given["sampler"] = given["old"] + noise
        given["ratio"] = (-noise).exp().clamp(max=1.5)
        objective = replace(CASES[name][0], old="trainer", weight_cap=1.5)
    kind = {"loss_type": objective.loss}
    expected = theirs(tmp_path, given, **(CLIPPED | kind | options))
    value, gradient = ours(given, objective, not decoupled)
    torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-5)
    assert given["logp"].grad is not None
    their_gradient = given["logp"].grad[given["mask"].bool()]
    torch.testing.assert_close(gradient, their_gradient, atol=1e-6, rtol=1e-5)
