"""Weights to vLLM servers: broadcast over gloo or NCCL, or by way of a folder that all of them see.

    open     servers join a group of which this process is rank 0      init_weight_transfer_engine
    send     for each bucket of tensors: what comes, and they receive  update_weights
             the server's workers put them in place                    finish_weight_update

The calls are those of vLLM's WeightTransfer API. `nccl` is vLLM's own; `gloo` is received by
receive.py. With nccl nothing was ever run: no machine with two GPUs was at hand.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors.torch import save_file
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import EngineError, Weights
from sandboxkit.integrations.grpo.engines.replicas import Refused, Replicas

__all__ = ["Broadcast", "Disk", "Transfer", "broadcast", "buckets", "end_update", "gloo_group"]

BUCKET = 256 * 2**20
"""Bytes; so many, and one tensor more, are held here besides the model."""
_LOOK_EVERY = 0.001


class Transfer(Protocol):
    """A way for weights into servers that are paused."""

    def send(self, weights: Weights, version: int) -> None:
        """Raises EngineError."""
        ...


def buckets(weights: Weights, dtype: torch.dtype, size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Tensors in their order, some at a time, until there are `size` bytes."""
    bucket: dict[str, torch.Tensor] = {}
    for name, value in weights:
        bucket[name] = value.detach().to(dtype).contiguous()
        if sum(each.nbytes for each in bucket.values()) >= size:
            yield bucket
            bucket = {}
    if bucket:
        yield bucket


def gloo_group(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    """A process group beside torch's default one."""
    return ProcessGroupGloo(PrefixStore("weights", store), rank, size, timeout)


def broadcast(group: ProcessGroupGloo, tensor: torch.Tensor) -> Any:  # Any: torch's Work
    """Begin to send from rank 0, or to receive in place on another one."""
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    return group.broadcast([tensor], options)


def end_update(replicas: Replicas, url: str, backend: str) -> None:
    """End an update that a killed run left half done: until then its model cannot be used.

    Raises ConfigurationError where the server was not started for the backend.
    """
    try:
        replicas.post(url, "/finish_weight_update").result()
    except Refused as error:
        if "without a matching" in str(error):
            return
        raise ConfigurationError(
            f"vLLM at {url} takes no weights ({error}): start it with VLLM_SERVER_DEV_MODE=1 and "
            f'--weight-transfer-config \'{{"backend": "{backend}"}}\', this package beside it'
        ) from error


class Broadcast:
    """Rank 0 sends; the workers of all servers, of every one of its GPUs, are the other ranks."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        backend: Literal["gloo", "nccl"],
        address: str,
        dtype: torch.dtype,
    ) -> None:
        self._replicas, self._dtype = replicas, dtype
        workers = [
            int(answer["world_size"])
            for answer in replicas.wait_all(
                [replicas.get(url, "/get_world_size") for url in replicas.urls]
            )
        ]
        size, timeout = 1 + sum(workers), timedelta(seconds=replicas.timeout)
        try:
            store = TCPStore(address, 0, size, True, timeout, wait_for_workers=False)
        except RuntimeError as error:
            raise ConfigurationError(
                f"engine.address={address!r} cannot be reached from here ({error}): give this "
                "machine's, as the servers see it"
            ) from error
        port = store.port  # which vLLM's nccl opens itself; another program could be faster
        if backend == "nccl":
            del store
        joining = replicas.post_all(
            "/init_weight_transfer_engine",
            *(
                {
                    "init_info": {
                        "master_address": address,
                        "master_port": port,
                        "rank_offset": 1 + sum(workers[:index]),
                        "world_size": size,
                    }
                }
                for index in range(len(workers))
            ),
        )
        self._begin: Callable[[torch.Tensor], Callable[[], bool]]
        try:
            if backend == "gloo":
                self._begin = _gloo_sender(gloo_group(store, 0, size, timeout))
            else:
                self._begin = _nccl_sender(address, port, size)
        except RuntimeError as error:
            raise EngineError(
                f"no group with {replicas} over {backend}, engine.address={address!r}: {error}"
            ) from error
        replicas.wait_all(joining)

    def send(self, weights: Weights, version: int) -> None:
        """See Transfer."""
        replicas = self._replicas
        replicas.wait_all(replicas.post_all("/start_weight_update"))
        for bucket in buckets(weights, self._dtype, BUCKET):
            info = {
                "names": list(bucket),
                "dtype_names": [str(each.dtype).removeprefix("torch.") for each in bucket.values()],
                "shapes": [list(each.shape) for each in bucket.values()],
            }
            receiving = replicas.post_all("/update_weights", {"update_info": info})
            try:
                sent = [self._begin(tensor) for tensor in bucket.values()]
                # An answer before everything is sent may be a refusal: nobody receives the rest.
                while not (all(done() for done in sent) or any(call.done() for call in receiving)):
                    time.sleep(_LOOK_EVERY)
            except RuntimeError as error:
                raise EngineError(f"no weights get to {replicas}: {error}") from error
            replicas.wait_all(receiving)
        finished = {"weight_version": str(version)}
        replicas.wait_all(replicas.post_all("/finish_weight_update", finished))


class Disk:
    """Files in a new folder inside `folder`, deleted once the servers have read them."""

    def __init__(self, replicas: Replicas, *, folder: str, dtype: torch.dtype) -> None:
        self._replicas, self._folder, self._dtype = replicas, folder, dtype

    def send(self, weights: Weights, version: int) -> None:
        """See Transfer."""
        with tempfile.TemporaryDirectory(prefix="weights-", dir=self._folder) as made:
            folder = Path(made).resolve()
            folder.chmod(0o755)  # a server may be another user's
            for number, bucket in enumerate(buckets(weights, self._dtype, BUCKET)):
                on_cpu = {name: value.cpu().clone() for name, value in bucket.items()}
                save_file(on_cpu, folder / f"model-{number:05}.safetensors")
            call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            self._replicas.wait_all(self._replicas.post_all("/collective_rpc", call))
        stamp = {"new_version": str(version)}
        self._replicas.wait_all(self._replicas.post_all("/update_weight_version", stamp))


def _gloo_sender(group: ProcessGroupGloo) -> Callable[[torch.Tensor], Callable[[], bool]]:
    def begin(tensor: torch.Tensor) -> Callable[[], bool]:
        work = broadcast(group, tensor.cpu())

        def done() -> bool:
            return bool(work.is_completed() and work.wait())  # which raises what went wrong

        return done

    return begin


def _nccl_sender(
    address: str, port: int, size: int
) -> Callable[[torch.Tensor], Callable[[], bool]]:
    from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

    group = stateless_init_process_group(address, port, 0, size, torch.cuda.current_device())

    def begin(tensor: torch.Tensor) -> Callable[[], bool]:
        stream, sent = torch.cuda.current_stream(), torch.cuda.Event()
        group.broadcast(tensor.cuda(), src=0, stream=stream)
        sent.record(stream)
        return lambda: bool(sent.query())

    return begin
