"""Checkpoints: written whole or not at all, and resumed from bit for bit.

A run's folder has `checkpoints/step-000010/`, each with the shards of model and optimizer as
torch.distributed.checkpoint (DCP) writes them, a `state.pt` for each rank's random numbers and
`run.json` for what the loop needs. It is written beside its place and renamed into it, after
everything has reached the disk: a name that is there is a whole checkpoint.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo import lora
from sandboxkit.integrations.grpo.ranks import barrier, rank_count, this_rank

__all__ = ["export", "latest", "restore", "save"]

JSON = str | int | float | bool | None | list["JSON"] | dict[str, "JSON"]

_NAME = re.compile(r"step-(\d{6,})")


def save(
    run: Path,
    step: int,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, JSON],
    *,
    keep: int = 2,
) -> Path:
    """Write the checkpoint after `step`, on all ranks together, and return its folder.

    Only the newest `keep` stay. `state` is the loop's own, JSON, from rank 0.
    """
    folder = run / "checkpoints" / f"step-{step:06}"
    partial = folder.with_name(f".{folder.name}")
    if this_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed while writing
        partial.mkdir(parents=True)
    barrier()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save(
        {"model": weights, "optimizer": moments},
        checkpoint_id=partial / "shards",
        no_dist=not dist.is_initialized(),
    )
    torch.save(
        {"torch": torch.get_rng_state(), "python": random.getstate()},
        partial / f"random-{this_rank()}.pt",
    )
    barrier()
    if this_rank() == 0:
        (partial / "run.json").write_text(
            json.dumps({"step": step, "ranks": rank_count(), **state})
        )
        for path in partial.rglob("*"):
            if path.is_file():
                _sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        _sync(folder.parent)
        for old in _all(run)[:-keep]:
            shutil.rmtree(old)
    barrier()
    return folder


def latest(run: Path) -> Path | None:
    """The newest whole checkpoint of a run, or None."""
    found = _all(run)
    return found[-1] if found else None


def restore(
    folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> dict[str, JSON]:
    """Load a checkpoint into model, optimizer and random numbers; returns the loop's state.

    Raises ConfigurationError when it was written by another number of ranks: the random numbers,
    and so the curve, would not be the same.
    """
    state: dict[str, JSON] = json.loads((folder / "run.json").read_text())
    if state["ranks"] != rank_count():
        raise ConfigurationError(
            f"checkpoint {folder} is of {state['ranks']} ranks, this run has {rank_count()}: "
            "start as many, or start a new run from its export"
        )
    weights, moments = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": moments}
    dcp.load(loaded, checkpoint_id=folder / "shards", no_dist=not dist.is_initialized())
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    numbers = torch.load(folder / f"random-{this_rank()}.pt", weights_only=False)
    torch.set_rng_state(numbers["torch"])
    random.setstate(numbers["python"])
    return state


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Write the whole model in Hugging Face's format, on all ranks together."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    if this_rank() == 0:
        weights = dict(lora.merged(model, whole.items()))
        model.save_pretrained(folder, state_dict=weights)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    barrier()


def _all(run: Path) -> list[Path]:
    folders = run.glob("checkpoints/step-*")
    return sorted(
        (folder for folder in folders if _NAME.fullmatch(folder.name)),
        key=lambda folder: int(folder.name.removeprefix("step-")),
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
