"""Checkpoints: written atomically, and restored bit for bit.

A checkpoint is a folder such as `checkpoints/step-000010/` with the shards of model and optimizer in
the format of torch.distributed.checkpoint (DCP); `random.pt` with every rank's random state; and
`run.json` with the loop's state and the size and CRC-32 of each other file. It is written to a
temporary folder and renamed after an fsync. Damage is detected before a checkpoint is used.
"""

import contextlib
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sandboxkit.integrations.grpo import lora
from sandboxkit.integrations.grpo.errors import CheckpointError, RankError
from sandboxkit.integrations.grpo.ranks import gathered, rank_count, shared, this_rank

__all__ = ["export", "newest", "read", "restore", "save"]

JSON = str | int | float | bool | None | list["JSON"] | dict[str, "JSON"]

_NAME = re.compile(r"step-(\d{6,})")
_STATE = "run.json"


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

    Deletes all but the newest `keep` checkpoints. `state` is rank 0's loop state as JSON. Raises
    CheckpointError on all ranks if the write fails.
    """
    folder = run / "checkpoints" / f"step-{step:06}"
    with _replacing(folder, "checkpoint", lambda: _prune(run, keep)) as partial:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save(
            {"model": weights, "optimizer": moments},
            checkpoint_id=partial / "shards",
            no_dist=not dist.is_initialized(),
        )
        numbers = gathered({"torch": torch.get_rng_state(), "python": random.getstate()})

        def finish() -> None:
            torch.save(numbers, partial / "random.pt")
            paths = [path for path in partial.rglob("*") if path.is_file()]
            files = {str(path.relative_to(partial)): _digest(path) for path in sorted(paths)}
            about = {"step": step, "ranks": rank_count(), "files": files, **state}
            (partial / _STATE).write_text(json.dumps(about))

        shared(finish)
    return folder


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint, or None, and a message for each damaged one after it.

    Damaged checkpoints are renamed to a hidden name; unfinished files of a killed run are deleted.
    Call this on rank 0, before anything else uses the run.
    """
    damaged: list[str] = []
    for left in (*run.glob("checkpoints/.step-*"), *run.glob(".export*")):
        shutil.rmtree(left, ignore_errors=True)
    for folder in reversed(_all(run)):
        wrong = _damage(folder)
        if not wrong:
            return folder, damaged
        damaged.append(f"checkpoint {folder} is damaged and left out: {wrong}")
        aside = folder.with_name(f".damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    return None, damaged


def read(folder: Path) -> dict[str, Any]:  # Any: JSON
    """Return the saved loop state."""
    state: dict[str, Any] = json.loads((folder / _STATE).read_text())
    return state


def restore(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint into model, optimizer and random state, on all ranks together.

    The random state is not restored if the number of ranks differs from that of the checkpoint.
    """
    weights, moments = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": moments}
    dcp.load(loaded, checkpoint_id=folder / "shards", no_dist=not dist.is_initialized())
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    numbers = torch.load(folder / "random.pt", weights_only=False)
    if len(numbers) == rank_count():
        torch.set_rng_state(numbers[this_rank()]["torch"])
        random.setstate(numbers[this_rank()]["python"])


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> None:
    """Write the whole model in Hugging Face's format, on all ranks together.

    Replaces an existing folder. Raises CheckpointError on all ranks if the write fails.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    with _replacing(folder, "export") as partial:

        def write() -> None:
            model.save_pretrained(partial, state_dict=dict(lora.merged(model, state.items())))
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)

        shared(write)


@contextlib.contextmanager
def _replacing(folder: Path, what: str, then: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary folder, which replaces `folder` at the end; all ranks enter and leave together.

    Fsyncs every file before it renames, and calls `then` on rank 0. Raises CheckpointError on all
    ranks if a write fails.
    """
    partial = folder.with_name(f".{folder.name}")

    def begin() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def put() -> None:
        for path in partial.rglob("*"):
            if path.is_file():
                _sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        _sync(folder.parent)
        then()

    try:
        shared(begin)
        yield partial
        shared(put)
    except (OSError, RuntimeError, SafetensorError, RankError, CheckpointException) as error:
        if this_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"{what} {folder} could not be written: {_why(error)}") from error


def _why(error: BaseException) -> str:
    """Return the error in one line; DCP's own text has every rank's traceback."""
    if isinstance(error, CheckpointException):
        reasons = {f"{type(each).__name__}: {each}" for each, _ in error.failures.values()}
        return "; ".join(sorted(reasons))
    return str(error)


def _damage(folder: Path) -> str:
    """Return what is wrong with a checkpoint, or "" if it is intact."""
    try:
        files: dict[str, list[int]] = read(folder)["files"]
        for name, (size, crc) in files.items():
            found, its_crc = _digest(folder / name)
            if found != size:
                return f"{name} has {found} bytes and not {size}"
            if its_crc != crc:
                return f"{name} has another content than was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _digest(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return size, crc


def _all(run: Path) -> list[Path]:
    found = [each for each in run.glob("checkpoints/step-*") if _NAME.fullmatch(each.name)]
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")))


def _prune(run: Path, keep: int) -> None:
    for old in _all(run)[:-keep]:
        shutil.rmtree(old)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
