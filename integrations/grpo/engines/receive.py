"""The vLLM worker's side of transfer.py: the weight transfer backend "gloo", for machines without GPU.

vLLM calls `register` in each of its processes, through the entry point group vllm.general_plugins.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from sandboxkit.integrations.grpo.engines.transfer import broadcast, gloo_group

__all__ = ["GlooTransferEngine", "register"]

_TIMEOUT = timedelta(seconds=600)


@dataclass
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc] # of a library without types
    """Parameters of a group, the same as vLLM's for NCCL."""

    master_address: str
    master_port: int
    rank_offset: int
    """Rank of this server's first worker."""
    world_size: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc] # the same
    """The tensors that follow, in order, with the names of the model's checkpoint."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):  # type: ignore[misc] # the same
    """Receives whole tensors from rank 0 and has vLLM load them, layer by layer."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the trainer's group, and leave any previous one."""
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.rank
        rank += parallel.data_parallel_index * parallel.world_size
        address, port = init_info.master_address, init_info.master_port
        store = TCPStore(address, port, timeout=_TIMEOUT, wait_for_workers=False)
        self._group = gloo_group(store, rank, init_info.world_size, _TIMEOUT)

    def start_weight_update(self) -> None:
        """Prepare for an update, before its first tensor."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Receive and load the announced tensors. Blocks until all are loaded."""
        try:
            for name, dtype, shape in zip(
                update_info.names, update_info.dtype_names, update_info.shapes, strict=True
            ):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype))
                broadcast(self._group, tensor).wait()
                self.model.load_weights([(name, tensor)])
        except BaseException:
            # Otherwise the next update would count the tensors of this one.
            self.finish_weight_update()
            raise

    def finish_weight_update(self) -> None:
        """Complete an update, after its last tensor."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group."""
        self.__dict__.pop("_group", None)


def register() -> None:
    """Register the backend with vLLM in this process."""
    WeightTransferEngineFactory.register_engine("gloo", GlooTransferEngine)
