"""One training step: grade the completions of a batch of prompts and compute their advantages.

    python training_step.py [--wandb-run NAME] [--slurm-job ID] [--model NAME]

The tags let any process find this run's sandboxes; see count_active.py.
"""

import argparse
import os
import statistics

from sandboxkit import Operation, Session, wait
from sandboxkit.integrations.rewards import HostCompare, Limits, Verdict, extract_code

PROMPTS = {
    "Write double(x), which is twice x.": {
        "test_list": ["assert double(2) == 4", "assert double(-1) == -2"]
    },
    "Write last(items), the last item, or None if there is none.": {
        "test_list": ["assert last([1, 2]) == 2", "assert last([]) is None"]
    },
}
SAMPLES = [  # what a model would have written
    "<answer>def double(x): return 2 * x</answer>",
    "<answer>def double(x): return x + 2</answer>",
    "<answer>def double(x): return x + x</answer>",
    "I would multiply it by two.",
    "<answer>def last(items): return items[-1]</answer>",
    "<answer>def last(items): return items[-1] if items else None</answer>",
    "<answer>def last(items): while True: pass</answer>",
    "<answer>def last(items): raise SystemExit(0)</answer>",
]
GROUP = len(SAMPLES) // len(PROMPTS)
GRADER = HostCompare(Limits(timeout=10))


def rewards(session: Session) -> list[float | None]:
    """Return 1 or 0 for each sample, or None after an infrastructure failure."""
    found: list[float | None] = [0.0] * len(SAMPLES)
    index: dict[Operation[Verdict], int] = {}
    for number, (text, task) in enumerate(
        zip(SAMPLES, (task for task in PROMPTS.values() for _ in range(GROUP)), strict=True)
    ):
        code = extract_code(text)
        if code is not None:
            index[GRADER.grade(session, code, task)] = number
    pending = list(index)
    while pending:  # a trainer would do other work meanwhile
        done, pending = wait(pending)
        for operation in done:
            found[index[operation]] = operation.result().reward
    return found


def advantages(group: list[float | None]) -> list[float]:
    """Return GRPO's advantages: (reward - group mean) / group standard deviation, and 0 for None."""
    known = [reward for reward in group if reward is not None]
    mean = statistics.fmean(known) if known else 0.0
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    return [0.0 if reward is None else (reward - mean) / (deviation + 1e-4) for reward in group]


parser = argparse.ArgumentParser(description="One step of reinforcement learning.")
parser.add_argument("--wandb-run", default=os.environ.get("WANDB_RUN_ID", "none"))
parser.add_argument("--slurm-job", default=os.environ.get("SLURM_JOB_ID", "none"))
parser.add_argument("--model", default="none")
args = parser.parse_args()
tags = [f"wandb-run:{args.wandb_run}", f"slurm-job:{args.slurm_job}", f"model:{args.model}"]
with Session(max_concurrency=4, tags=tags) as session:
    scored = rewards(session)
for number, prompt in enumerate(PROMPTS):
    members = scored[number * GROUP : (number + 1) * GROUP]
    print(prompt)
    for reward, advantage in zip(members, advantages(members), strict=True):
        print(f"  reward {reward}, advantage {advantage:+.2f}")
