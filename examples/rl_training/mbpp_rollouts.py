"""Multi-step MBPP rollouts, in groups, as trajectories for ART to train on.

    python mbpp_rollouts.py --dry-run
    python mbpp_rollouts.py --base-url http://localhost:8000/v1 --model my-model

With `--dry-run` a script replaces the model: it omits the return statement, reads the error and fixes
the code. Otherwise `--base-url` is a server with OpenAI's API, such as vLLM's.
"""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Sequence
from importlib import resources
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.art import EndpointPolicy, Message, Policy, Rollouts, ScriptedPolicy
from sandboxkit.json_lines import json_lines


def problems(limit: int) -> list[dict[str, Any]]:
    """Return the first `limit` problems of MBPP."""
    with resources.files("sandboxkit.cli").joinpath("mbpp_100.jsonl").open("rb") as file:
        return [problem for _, problem in itertools.islice(json_lines(file, "MBPP"), limit)]


def scripted(tasks: Sequence[dict[str, Any]]) -> Policy:
    """Return a policy whose first answer is wrong and whose second is the reference solution."""
    solutions = {task["text"]: task["code"] for task in tasks}

    def reply(messages: Sequence[Message]) -> str:
        code = solutions[messages[1]["content"].partition("\n")[0]]
        if len(messages) == 2:
            code = code.replace("return", "pass #")
        return f"Let me try.\n```python\n{code}\n```"

    return ScriptedPolicy(reply)


async def main() -> None:
    """Run the rollouts and print one line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="a script instead of a model")
    parser.add_argument("--base-url", help="such as http://localhost:8000/v1")
    parser.add_argument("--model", default="default")
    parser.add_argument("--problems", type=int, default=2)
    parser.add_argument("--group", type=int, default=2, help="rollouts of each problem")
    args = parser.parse_args()
    if args.dry_run == bool(args.base_url):
        parser.error("no model: give --dry-run for a script, or --base-url URL for a server")
    tasks = problems(args.problems)
    policy = scripted(tasks) if args.dry_run else EndpointPolicy(args.base_url, args.model)
    tags = ("rl-training", "wandb-run:none", "slurm-job:none", f"model:{args.model}")
    async with Session(max_concurrency=4, tags=tags) as session:
        groups = await Rollouts().run_all(session, policy, tasks, args.group)
    for group in groups:
        for trajectory in group:
            turns = len(trajectory.messages_and_choices)
            print(f"{trajectory.metadata['task_id']}: {turns} turns, reward {trajectory.reward}")
    kept = [each.art() for group in groups for each in group if each.reward is not None]
    if not kept:
        sys.exit(f"no rollout has a reward; the first: {groups[0][0].detail}")
    print(f"{len(kept)} trajectories to train on")  # art.Trajectory(**kept[0]), ...


asyncio.run(main())
