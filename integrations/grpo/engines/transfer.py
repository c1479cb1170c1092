"""Weight transfer to vLLM servers: broadcast over gloo or NCCL, or files in a shared folder.

    join     a server's workers join a group of which this is rank 0   init_weight_transfer_engine
    send     for each bucket of tensors: what comes, and they receive  update_weights
             the server's workers put them in place                    finish_weight_update

Each server has its own process group, so a server that dies does not affect the others. The calls
are vLLM's WeightTransfer API. `nccl` is vLLM's own backend; receive.py implements `gloo` in vLLM. The
nccl backend has never been run, for lack of a machine with two GPUs.
"""

import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Protocol

import torch
from safetensors.torch import save_file
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import EngineError, Weights
from sandboxkit.integrations.grpo.engines.files import OwnFolder
from sandboxkit.integrations.grpo.engines.replicas import Refused, Replicas

__all__ = [
    "BUCKET",
    "Broadcast",
    "Bucket",
    "Disk",
    "Each",
    "Step",
    "WeightTransfer",
    "broadcast",
    "buckets",
    "end_update",
    "gloo_group",
]

Bucket = dict[str, torch.Tensor]
Step = Callable[[str], object]
"""An action on one server, given its URL."""
Each = Callable[[Step], None]
"""Runs a step on every server that is to get the weights, concurrently."""
_Begin = Callable[[torch.Tensor], Callable[[], bool]]
"""Starts to send a tensor; returns a function that says whether it is sent, or raises RuntimeError."""

BUCKET = 256 * 2**20
"""Size of a bucket in bytes; up to this plus one tensor is held in memory besides the model."""
_LOOK_EVERY = 0.001
_GROUP_TIMEOUT = 120.0
"""Time limit in seconds to join, and to send one bucket; a silent server delays an update this long."""


class WeightTransfer(Protocol):
    """Transfers weights to paused servers. A failure with one server raises EngineError in its step."""

    def join(self, url: str) -> None:
        """Connect to a server, before weights are sent to it and again after it was lost."""
        ...

    def send(self, each: Each, made: Iterable[Bucket], version: int) -> None:
        """Send all buckets to every server that `each` calls."""
        ...

    def close(self) -> None:
        """Disconnect from the servers."""
        ...


def buckets(weights: Weights, dtype: torch.dtype, size: int) -> Iterator[Bucket]:
    """Group the tensors, in order, into buckets of at least `size` bytes."""
    bucket: Bucket = {}
    for name, value in weights:
        bucket[name] = value.detach().to(dtype).contiguous()
        if sum(each.nbytes for each in bucket.values()) >= size:
            yield bucket
            bucket = {}
    if bucket:
        yield bucket


def gloo_group(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    """Return a process group that is independent of torch's default group."""
    return ProcessGroupGloo(PrefixStore("weights", store), rank, size, timeout)


def broadcast(group: ProcessGroupGloo, tensor: torch.Tensor) -> Any:  # Any: torch's Work
    """Start to send from rank 0, or on another rank to receive in place."""
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    return group.broadcast([tensor], options)


def end_update(replicas: Replicas, url: str, backend: str) -> None:
    """Finish an update that a killed run left incomplete; the server's model is unusable until then.

    Raises ConfigurationError if the server was not started with this backend.
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
    """Broadcasts from rank 0; the other ranks are a server's workers, one per GPU."""

    def __init__(self, replicas: Replicas, backend: Literal["gloo", "nccl"], address: str) -> None:
        self._replicas, self._backend, self._address = replicas, backend, address
        self._groups: dict[str, _Begin] = {}

    def join(self, url: str) -> None:
        """See Transfer. Raises ConfigurationError if the address does not belong to this machine."""
        replicas, address = self._replicas, self._address
        self._groups.pop(url, None)
        size = 1 + int(replicas.get(url, "/get_world_size").result()["world_size"])
        timeout = timedelta(seconds=min(replicas.timeout, _GROUP_TIMEOUT))
        try:
            store = TCPStore(address, 0, size, True, timeout, wait_for_workers=False)
        except RuntimeError as error:
            raise ConfigurationError(
                f"engine.address={address!r} cannot be reached from here ({error}): give this "
                "machine's, as the servers see it"
            ) from error
        port = store.port  # vLLM's nccl opens it itself; another program could take it first
        if self._backend == "nccl":
            del store
        info = {
            "master_address": address,
            "master_port": port,
            "rank_offset": 1,
            "world_size": size,
        }
        joining = replicas.post(url, "/init_weight_transfer_engine", {"init_info": info})
        try:
            if self._backend == "gloo":
                self._groups[url] = _gloo_sender(gloo_group(store, 0, size, timeout))
            else:
                self._groups[url] = _nccl_sender(address, port, size)
            joining.result()
        except EngineError:
            raise
        except RuntimeError as error:
            raise EngineError(
                f"no group with vLLM at {url} over {self._backend}, engine.address={address!r}: "
                f"{error}"
            ) from error
        finally:
            joining.cancel()

    def send(self, each: Each, made: Iterable[Bucket], version: int) -> None:
        """See Transfer."""
        post = self._replicas.post
        finished = {"weight_version": str(version)}
        each(lambda url: post(url, "/start_weight_update").result())
        for bucket in made:
            each(partial(self._send_one, bucket))
        each(lambda url: post(url, "/finish_weight_update", finished).result())

    def _send_one(self, bucket: Bucket, url: str) -> None:
        info = {
            "names": list(bucket),
            "dtype_names": [str(each.dtype).removeprefix("torch.") for each in bucket.values()],
            "shapes": [list(each.shape) for each in bucket.values()],
        }
        receiving = self._replicas.post(url, "/update_weights", {"update_info": info})
        begin = self._groups.get(url, _nobody)
        try:
            sent = [begin(tensor) for tensor in bucket.values()]
            # An early answer may be a refusal: then the rest is never received.
            while not (all(done() for done in sent) or receiving.done()):
                time.sleep(_LOOK_EVERY)
            receiving.result()
        except EngineError:
            raise
        except RuntimeError as error:
            raise EngineError(f"no weights get to vLLM at {url}: {error}") from error
        finally:
            receiving.cancel()

    def close(self) -> None:
        """See Transfer."""
        self._groups.clear()


class Disk:
    """Transfers weights as files, which are deleted once the servers have read them."""

    def __init__(self, replicas: Replicas, files: OwnFolder) -> None:
        self._replicas, self._files = replicas, files

    def join(self, url: str) -> None:
        """See Transfer."""

    def send(self, each: Each, made: Iterable[Bucket], version: int) -> None:
        """See Transfer. Raises EngineError if the files cannot be written."""
        post, folder = self._replicas.post, self._files.path / secrets.token_hex(4)
        try:
            self._files.write(lambda: folder.mkdir(mode=0o755, exist_ok=True))
            for number, bucket in enumerate(made):
                on_cpu = {name: value.cpu().clone() for name, value in bucket.items()}
                path = folder / f"model-{number:05}.safetensors"
                self._files.write(partial(save_file, on_cpu, path))
            call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            each(lambda url: post(url, "/collective_rpc", call).result())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        stamp = {"new_version": str(version)}
        each(lambda url: post(url, "/update_weight_version", stamp).result())

    def close(self) -> None:
        """See Transfer."""
        self._files.close()


def _nobody(_: torch.Tensor) -> Callable[[], bool]:
    raise EngineError("the group was left")


def _gloo_sender(group: ProcessGroupGloo) -> _Begin:
    def begin(tensor: torch.Tensor) -> Callable[[], bool]:
        work = broadcast(group, tensor.cpu())

        def done() -> bool:
            return bool(work.is_completed() and work.wait())  # wait() raises a failure

        return done

    return begin


def _nccl_sender(address: str, port: int, size: int) -> _Begin:
    from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

    group = stateless_init_process_group(address, port, 0, size, torch.cuda.current_device())

    def begin(tensor: torch.Tensor) -> Callable[[], bool]:
        stream, sent = torch.cuda.current_stream(), torch.cuda.Event()
        group.broadcast(tensor.cuda(), src=0, stream=stream)
        sent.record(stream)
        return lambda: bool(sent.query())

    return begin
