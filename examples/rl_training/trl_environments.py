"""Rollouts that each work in their own sandbox, whose files a judge grades at the end.

    GRPOTrainer(environment_factory=environments, reward_funcs=EnvironmentReward(), ...).train()

Here a script calls the tools as TRL does for a model.
"""

from collections.abc import Mapping
from typing import Any

from sandboxkit import Sandbox
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments

ROW = {"prompt": "Write the sum of numbers.txt to total.txt.", "total": "6"}


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    """Grade the file that the rollout wrote; a missing file is the rollout's failure."""
    found = (await sandbox.read_file("/workspace/total.txt")).decode().strip()
    passed = found == row["total"]
    return Verdict(Outcome.PASSED if passed else Outcome.FAILED, float(passed))


with SandboxEnvironments(judge, tags="rl-training") as environments:
    rollouts = [environments() for _ in range(3)]
    for rollout in rollouts:
        rollout.reset(**ROW, files={"/workspace/numbers.txt": "1\n2\n3\n"})
    right, wrong, idle = rollouts
    print(right.bash("cat numbers.txt | paste -sd+"))
    print(right.str_replace_editor("create", "/workspace/total.txt", file_text="6\n"))
    print(wrong.bash("wc -l < numbers.txt > total.txt; cat total.txt"))
    prompts, completions = [ROW["prompt"]] * 3, ["done"] * 3
    rewards = EnvironmentReward()(prompts, completions, environments=rollouts)
    print(rewards)  # None would be a failure of the infrastructure
