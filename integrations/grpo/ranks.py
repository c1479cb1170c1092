"""Ranks of a training run and their communication; everything also works in a single process."""

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from sandboxkit.integrations.grpo.errors import RankError, Stopped
from sandboxkit.integrations.grpo.parent import end_with_parent

__all__ = [
    "gathered",
    "joined",
    "on_first",
    "rank_count",
    "shared",
    "this_rank",
]

T = TypeVar("T")


@contextlib.contextmanager
def joined(device: Literal["cpu", "cuda"], timeout: float) -> Iterator[None]:
    """Join the process group if started by torchrun. Collectives time out after `timeout` seconds.

    If torchrun is killed, this process gets a SIGTERM.
    """
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    if dist.is_torchelastic_launched():
        end_with_parent()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def this_rank() -> int:
    """Return the rank of this process; 0 in a single process."""
    return dist.get_rank() if dist.is_initialized() else 0


def rank_count() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def shared(make: Callable[[], T]) -> T:
    """Call `make` on rank 0 and return its result on every rank.

    If it raises, the other ranks raise RankError; Stopped is raised on all.
    """
    if not dist.is_initialized():
        return make()
    message: list[Any] = [None, None]  # Any: as torch has it
    if dist.get_rank() == 0:
        try:
            message[0] = make()
        except BaseException as error:
            text = f"rank 0 stopped: {type(error).__name__}: {error}"
            known = Stopped() if isinstance(error, Stopped) else RankError(text)
            dist.broadcast_object_list([None, known], 0)
            raise
    dist.broadcast_object_list(message, 0)
    if message[1] is not None:
        raise message[1]
    result: T = message[0]
    return result


def gathered(value: T) -> list[T]:
    """Return the values of all ranks, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()  # Any: as torch has it
    dist.all_gather_object(values, value)
    return values


def on_first(make: Callable[[], T]) -> T | None:
    """Call `make` on rank 0 and return its result there, None on other ranks. Raises as `shared` does."""
    made: list[T] = []
    shared(lambda: made.append(make()))
    return made[0] if made else None
