"""Trains for some steps, alone or as a rank of torchrun, and prints each report as JSON."""

import json
import os
import sys
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from sandboxkit.integrations.grpo.model import load, shard
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.training import train_step
from tests.grpo.tiny import samples


def main(folder: str, kind: str, steps: int) -> None:
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    model = load(folder)
    if ranks > 1:
        dist.init_process_group("gloo")
        shard(model, init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    objective = Objective(loss=kind, max_completion_tokens=12)  # type: ignore[arg-type] # an argument
    for step in range(steps):
        # 7 on 2 ranks: their rows differ in number.
        report = train_step(
            model, optimizer, samples(7, seed=step), objective, max_tokens_per_row=24
        )
        if ranks == 1 or dist.get_rank() == 0:
            sys.stdout.write(json.dumps(asdict(report)) + "\n")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
