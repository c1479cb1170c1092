"""The processes that train together, and what they tell each other; all of it works for one alone."""

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from sandboxkit.integrations.grpo.errors import RankError
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
    """In the process group, under torchrun; a rank that waits longer than `timeout` s gives up.

    SIGTERM comes to it where torchrun is killed.
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
    """The number of this process, 0 where it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def rank_count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def shared(make: Callable[[], T]) -> T:
    """Call on rank 0 and give every rank what it returned.

    Where it raises there the others raise RankError instead of waiting.
    """
    if not dist.is_initialized():
        return make()
    message: list[Any] = [None, ""]  # Any: as torch has it
    if dist.get_rank() == 0:
        try:
            message[0] = make()
        except BaseException as error:
            dist.broadcast_object_list([None, f"{type(error).__name__}: {error}"], 0)
            raise
    dist.broadcast_object_list(message, 0)
    if message[1]:
        raise RankError(f"rank 0 stopped: {message[1]}")
    result: T = message[0]
    return result


def gathered(value: T) -> list[T]:
    """Every rank's value, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()  # Any: as torch has it
    dist.all_gather_object(values, value)
    return values


def on_first(make: Callable[[], T]) -> T | None:
    """As `shared`, but what it returned stays on rank 0; None on the others."""
    made: list[T] = []

    def run() -> None:
        made.append(make())

    shared(run)
    return made[0] if made else None
