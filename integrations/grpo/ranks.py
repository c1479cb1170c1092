"""Which of the processes that train together this one is."""

import torch.distributed as dist

__all__ = ["rank_count", "this_rank"]


def this_rank() -> int:
    """The number of this process, 0 where it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def rank_count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1
