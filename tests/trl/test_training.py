"""TRL's own trainer with our rewards, on a model that knows nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit.integrations.trl import CombinedReward, SandboxReward
from tests.trl.graders import Length, Refusing, whole
from tests.trl.tiny import expected_advantages, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds

PLAIN = [{"prompt": f"write {number}"} for number in range(16)]


@pytest.mark.parametrize("combined", [False, True])
def test_a_third_of_failures_changes_no_other_advantage(tmp_path: Path, combined: bool) -> None:
    provider = Refusing(lambda number: number % 10 in (2, 5, 8))
    subject = SandboxReward(Length(), provider=provider, extract=whole, max_infra_failed_rate=0.9)

    def length(completions: list[str], **_: Any) -> list[float]:
        return [len(text) / 100 for text in completions]

    functions = [CombinedReward([subject, length])] if combined else [subject]
    training = trainer(tmp_path, PLAIN, reward_funcs=functions, config={"max_steps": 5})
    try:
        training.train()
    finally:
        subject.close()
    assert provider.refused > 10
    name = training.reward_func_names[0]
    rewards = torch.tensor(list(training._logs["rewards"][name]))
    advantages = torch.tensor(list(training._logs["advantages"]))
    failed = rewards.isnan()
    assert 0.1 < failed.float().mean() < 0.5
    torch.testing.assert_close(advantages, expected_advantages(rewards), atol=1e-5, rtol=1e-4)
    assert (advantages[failed] == 0).all()
    rates = [entry["outcome/infra_error"] for entry in training.state.log_history[:-1]]
    assert len(rates) == 5
    assert sum(rates) / 5 == pytest.approx(provider.refused / 80)
    assert rates[-1] == failed.float().mean()
