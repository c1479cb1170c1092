"""Engine with vLLM servers on any machines: token ids in and out, each request to the least busy.

If a server is lost, its requests restart on another one from the beginning of the turn, so that each
completion comes from one server. A server that answers again first gets the current weights, of
which a copy is kept for this purpose.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

import torch

from sandboxkit import Operation
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.config import Model
from sandboxkit.integrations.grpo.engines import Completion, EngineError, SampleRequest, Weights
from sandboxkit.integrations.grpo.engines.adapter import Adapter
from sandboxkit.integrations.grpo.engines.files import OwnFolder
from sandboxkit.integrations.grpo.engines.fleet import Fleet, VllmServer
from sandboxkit.integrations.grpo.engines.replicas import Refused, Replicas
from sandboxkit.integrations.grpo.engines.transfer import (
    BUCKET,
    Broadcast,
    Bucket,
    Disk,
    Each,
    Step,
    WeightTransfer,
    buckets,
)
from sandboxkit.integrations.grpo.engines.vllm_calls import (
    GENERATE,
    Asked,
    check,
    completion,
    versions,
)

__all__ = ["VLLMServers"]

_TRIES = 8
"""Attempts per completion: a request that crashes every server must end the run, not all servers."""
_HEALTH = 10.0
"""Time limit in seconds for a health check."""
_LOOK_EVERY = 0.1


class VLLMServers:
    """An engine over running servers, which all serve the same model under the name `model`.

    `vocabulary` is the model's number of tokens. `adapter` is given if only adapters are sent: then
    `update_weights` takes the adapters' weights with peft's names. Raises ConfigurationError if a
    server is not set up as needed. The constructor waits for the first server, and `generate` for a
    living one; both raise EngineError after `engine.patience` seconds without any. While it waits
    the constructor calls `waiting`, which may raise to end it. Other methods skip lost servers.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: str,
        vocabulary: int,
        stop: Collection[int],
        adapter: Model | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._asked = settings, Asked(model, vocabulary, stop)
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        files = OwnFolder(settings.folder, settings.patience) if settings.by_files else None
        self._replicas = Replicas(settings.timeout)
        self._fleet = Fleet(settings.urls, settings.patience, self._take_back)
        self._transfer: WeightTransfer
        self._sampled = model
        if files is not None and settings.transfer == "adapter":
            assert adapter is not None
            rank, alpha = adapter.lora_rank, adapter.lora_alpha
            self._transfer = sent = Adapter(self._replicas, files, rank, alpha)
            self._sampled = sent.name
        elif files is not None:
            self._transfer = Disk(self._replicas, files)
        else:
            assert settings.transfer in ("gloo", "nccl")
            self._transfer = Broadcast(self._replicas, settings.transfer, settings.address)
        self._kept: list[Bucket] = []
        self._version: int | None = None
        self._closed = False
        try:
            self._fleet.each(self._prepare)
            first = Operation(self._fleet.choose())  # servers may still be starting
            try:
                while not first.done():
                    concurrent.futures.wait([first], timeout=_LOOK_EVERY)
                    waiting()
                first.result()
            finally:
                first.cancel()
        except BaseException:
            self.close()
            raise

    async def generate(self, request: SampleRequest) -> Completion:
        """See Engine."""
        body, why = {**self._asked.body(request), "model": self._sampled}, ""
        for _ in range(_TRIES):
            server = await self._fleet.choose(request.server)
            losses = server.losses
            call = self._replicas.post(server.url, GENERATE, body)
            try:
                with self._fleet.asking(server, call):
                    answer = await call
                if server.losses == losses:
                    self._refuse_other_weights(server.url, versions(answer))
                    return completion(answer, server.url)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if server.losses == losses or (task and task.cancelling()):
                    raise
            except (KeyError, IndexError, TypeError, ValueError) as error:
                why = (
                    f"vLLM at {server.url} answered what is no completion "
                    f"({type(error).__name__}: {error}): {str(answer)[:300]}"
                )
                self._lose(server, losses, EngineError(why))
            except EngineError as error:
                if isinstance(error, Refused) and error.status < 500 and not self._forgot(error):
                    raise
                why = str(error)
                self._lose(server, losses, error)
        raise EngineError(f"{_TRIES} times no server gave a completion; the last time: {why}")

    def pause(self) -> None:
        """See Engine."""
        self._fleet.turn.acquire()
        self._fleet.each(self._pause)

    def resume(self) -> None:
        """See Engine."""
        try:
            self._fleet.each(self._resume)
        finally:
            self._fleet.turn.release()

    def update_weights(self, weights: Weights, version: int) -> None:
        """See Engine. Caches from the old weights are recomputed, also for requests in flight."""
        self._version, self._kept = version, []
        self._send(self._fleet.each, self._keeping(weights), version)

    def close(self) -> None:
        """See Engine. The servers keep running."""
        if not self._closed:
            self._closed = True
            self._fleet.close()
            self._transfer.close()
            self._replicas.close()

    def _keeping(self, weights: Weights) -> Iterator[Bucket]:
        for bucket in buckets(weights, self._dtype, BUCKET):
            # Copy: on the CPU the bucket may hold the parameters themselves.
            self._kept.append({k: value.to("cpu", copy=True) for k, value in bucket.items()})
            yield bucket

    def _send(
        self,
        each: Each,
        made: Iterable[Bucket],
        version: int,
    ) -> None:
        self._transfer.send(each, made, version)
        reset = "/reset_prefix_cache?reset_running_requests=true"
        each(lambda url: self._replicas.post(url, reset).result())

    def _prepare(self, url: str) -> None:
        check(self._replicas, url, self._settings, self._asked)
        self._transfer.join(url)

    def _pause(self, url: str) -> None:
        self._replicas.post(url, "/pause?mode=keep").result()

    def _resume(self, url: str) -> None:
        self._replicas.post(url, "/resume").result()

    def _take_back(self, server: VllmServer) -> None:
        url = server.url
        self._replicas.get(url, "/v1/models", within=_HEALTH).result()
        self._prepare(url)
        with self._fleet.turn:
            if self._version is not None:
                self._pause(url)
                self._send(partial(_alone, url), self._kept, self._version)
                self._resume(url)
            self._fleet.back(server)

    def _refuse_other_weights(self, url: str, found: list[int | None]) -> None:
        """Raise EngineError if a server restarted unnoticed, and so sampled with its initial weights."""
        if self._version is not None and None in found:
            raise EngineError(f"vLLM at {url} was started anew and has not the run's weights")

    def _forgot(self, error: Refused) -> bool:
        """Whether a server restarted unnoticed and therefore does not know the adapter."""
        return error.status == 404 and self._sampled != self._asked.model

    def _lose(self, server: VllmServer, losses: int, why: Exception) -> None:
        if server.losses == losses:
            self._fleet.lose(server, why)


def _alone(url: str, step: Step) -> None:
    step(url)
