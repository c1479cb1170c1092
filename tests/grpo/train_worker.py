"""Trains for some steps, alone or as one of several ranks, and prints each report as JSON.

With a run's folder it writes a checkpoint after each step, and goes on from the newest.
"""

import json
import os
import sys
from collections.abc import Sequence
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


def main(folder: str, kind: str, steps: int, run: Path | None) -> None:
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
        model = sharded(lambda empty: load(folder, empty=empty))
    else:
        model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    objective = Objective(loss=kind, max_completion_tokens=12)  # type: ignore[arg-type] # an argument
    first = 0
    newest, _ = (None, []) if run is None else shared(lambda: checkpoint.newest(run))
    if newest is not None:
        checkpoint.restore(newest, model, optimizer)
        first = checkpoint.read(newest)["step"]
    for step in range(first, steps):
        # 7 on 2 ranks: their rows differ in number. Two of three have the prompt of the one before.
        batch = samples(7, seed=step)
        batch = [replace(each, prompt=batch[i // 3 * 3].prompt) for i, each in enumerate(batch)]
        report = train_step(model, optimizer, batch, objective, max_tokens_per_row=24)
        if ranks == 1 or dist.get_rank() == 0:
            sys.stdout.write(json.dumps(asdict(report)) + "\n")
            sys.stdout.flush()
        if run is not None:
            checkpoint.save(run, step + 1, model, optimizer, {})
    if run is not None:
        checkpoint.export(model, None, run / "export")
    if ranks > 1:
        dist.destroy_process_group()


def run(arguments: Sequence[str]) -> None:
    """Train with a model's folder, a loss, a number of steps, and a run's folder or none; exit with 0."""
    folder, kind, steps, *rest = arguments
    main(folder, kind, int(steps), Path(rest[0]) if rest else None)
    leave(0)
