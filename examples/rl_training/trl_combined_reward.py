"""Combine several rewards into a sum, which is None (not 0) for a completion that could not be graded.

GRPOTrainer(reward_funcs=reward, ...).train()
"""

from sandboxkit.integrations.rewards import HostCompare, Limits
from sandboxkit.integrations.trl import CombinedReward, SandboxReward

COMPLETIONS = [
    "<answer>def double(x): return 2 * x</answer>",
    "Doubling is adding a number to itself.\n<answer>def double(x): return x + x</answer>",
    "<answer>def double(x): return x ** 2</answer>",
]
TESTS = ["assert double(2) == 4", "assert double(3) == 6"]


def brevity(completions: list[str], **_: object) -> list[float]:
    """Return 1 for an empty text, falling linearly to 0 for 100 characters or more."""
    return [max(0.0, 1 - len(text) / 100) for text in completions]


correct = SandboxReward(HostCompare(Limits(timeout=10), partial=True), name="correct", pool=1)
reward = CombinedReward([correct, brevity], weights=[1.0, 0.1])
try:
    prompts = ["Write double(x), which is twice x."] * len(COMPLETIONS)
    for value in reward(prompts, COMPLETIONS, test_list=[TESTS] * len(COMPLETIONS)):
        print(None if value is None else f"{value:.3f}")
finally:
    correct.close()
