"""vLLM servers, on this machine or others: token ids in and out, each request to the least busy.

A server that is lost is done without: what it was asked is asked of another one, from the turn's
beginning, so that a completion is one server's and is had once. One that answers again gets the
weights, of which a copy is kept for that, and is sampled from once it has them.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

import torch

from sandboxkit import Operation
from sandboxkit.integrations.grpo.config import Engine as Settings
from sandboxkit.integrations.grpo.config import Model
from sandboxkit.integrations.grpo.engines import Completion, EngineError, Request, Weights
from sandboxkit.integrations.grpo.engines.adapter import Adapter
from sandboxkit.integrations.grpo.engines.files import OwnFolder
from sandboxkit.integrations.grpo.engines.fleet import Fleet, Server
from sandboxkit.integrations.grpo.engines.replicas import Refused, Replicas
from sandboxkit.integrations.grpo.engines.transfer import (
    BUCKET,
    Broadcast,
    Bucket,
    Disk,
    Each,
    Step,
    Transfer,
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
"""For one completion: a request that no server survives is to end the run and not all of them."""
_HEALTH = 10.0
"""Seconds for an answer that takes no work."""
_LOOK_EVERY = 0.1


class VLLMServers:
    """Servers that somebody started, all of the same model, which they serve as `model`.

    `vocabulary` is the model's number of tokens, `adapter` says what adapters are of where they are
    sent alone: then `update_weights` takes theirs, named as peft does. Raises ConfigurationError when a server is not
    as this needs it. The constructor waits for the first server, and `generate` for one that lives:
    both raise EngineError when there was none for `engine.patience` seconds; what `waiting` raises,
    which the former calls meanwhile, ends it. All else waits for nobody who is lost.
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
        self._transfer: Transfer
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
            first = Operation(self._fleet.choose())  # servers take longer to start than this
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

    async def generate(self, request: Request) -> Completion:
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
        """See Engine. What was computed from the old ones, in flight too, is computed again."""
        self._version, self._kept = version, []
        self._send(self._fleet.each, self._keeping(weights), version)

    def close(self) -> None:
        """See Engine. The servers stay."""
        if not self._closed:
            self._closed = True
            self._fleet.close()
            self._transfer.close()
            self._replicas.close()

    def _keeping(self, weights: Weights) -> Iterator[Bucket]:
        for bucket in buckets(weights, self._dtype, BUCKET):
            # Copies: on the CPU they would be the parameters themselves.
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

    def _take_back(self, server: Server) -> None:
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
        """A server that was started anew, before anybody noticed, has those that it began with."""
        if self._version is not None and None in found:
            raise EngineError(f"vLLM at {url} was started anew and has not the run's weights")

    def _forgot(self, error: Refused) -> bool:
        """The same, where adapters are sent: it does not know the one that it is asked for."""
        return error.status == 404 and self._sampled != self._asked.model

    def _lose(self, server: Server, losses: int, why: Exception) -> None:
        if server.losses == losses:
            self._fleet.lose(server, why)


def _alone(url: str, step: Step) -> None:
    step(url)
