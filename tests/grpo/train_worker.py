"""Trains for some steps, alone or as one of several ranks, and prints each report as JSON.

With a run's folder it writes a checkpoint after each step, and goes on from the newest.
"""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.model import load, sharded
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.output import leave
from sandboxkit.integrations.grpo.ranks import shared
from sandboxkit.integrations.grpo.training import train_step
from tests.grpo.tiny import samples


def run(rank: str, ranks: str, port: str, folder: str, kind: str, steps: str, to: str = "") -> None:
    """Train a model's folder with a loss for a number of steps, into a run's folder or none; exit with 0."""
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update(variables | {"MASTER_ADDR": "127.0.0.1"})
    torch.set_num_threads(1)
    if ranks == "1":
        model = load(folder)
    else:
        dist.init_process_group("gloo")
        model = sharded(lambda empty: load(folder, empty=empty))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    objective = Objective(loss=kind, max_completion_tokens=12)  # type: ignore[arg-type] # an argument
    first, into = 0, Path(to)
    newest, _ = shared(lambda: checkpoint.newest(into)) if to else (None, [])
    if newest is not None:
        checkpoint.restore(newest, model, optimizer)
        first = checkpoint.read(newest)["step"]
    for step in range(first, int(steps)):
        # 7 on 2 ranks: their rows differ in number. Two of three have the prompt of the one before.
        batch = samples(7, seed=step)
        batch = [replace(each, prompt=batch[i // 3 * 3].prompt) for i, each in enumerate(batch)]
        report = train_step(model, optimizer, batch, objective, max_tokens_per_row=24)
        if rank == "0":
            sys.stdout.write(json.dumps(asdict(report)) + "\n")
            sys.stdout.flush()
        if to:
            checkpoint.save(into, step + 1, model, optimizer, {})
    if to:
        checkpoint.export(model, None, into / "export")
    if ranks != "1":
        dist.destroy_process_group()
    leave(0)
