"""Engine with vLLM servers: token ids in and out, each request to the least busy server.

Weights reach the servers as files in a folder that all of them see. A server that fails is not used
again in this run. Its requests restart on another one from the beginning of the turn, so that each
completion comes from one server.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sandboxkit import Operation
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.engines import Completion, EngineError, SampleRequest, Weights
from sandboxkit.integrations.grpo.engines.replicas import JSON, Refused, Replicas
from sandboxkit.integrations.grpo.engines.vllm_calls import (
    GENERATE,
    Asked,
    check,
    completion,
    versions,
)
from sandboxkit.integrations.grpo.engines.weight_files import WeightFiles

__all__ = ["VLLMServers"]

_HEALTH = 10.0
"""Time limit in seconds for a health check."""
_LOOK_EVERY = 0.1
_log = logging.getLogger("sandboxkit.grpo")


@dataclass(eq=False, slots=True)
class VllmServer:
    """One vLLM server."""

    url: str
    lost: str = ""
    """Why the server is not used; empty while it is used."""
    calls: set[Operation[Any]] = field(default_factory=set)  # Any: what a server answers
    """Pending calls for completions."""


class VLLMServers:
    """An engine over running servers, which all serve the same model under the name `model`.

    `vocabulary` is the model's number of tokens, `run` the run's folder. The constructor waits until
    every server answers, and calls `waiting` meanwhile, which may raise to end the wait. It raises
    EngineError after `engine.patience` seconds, and ConfigurationError if a server is not set up as
    needed. Later every method raises EngineError once no server is left.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: str,
        vocabulary: int,
        stop: Collection[int],
        run: str,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._asked = settings, Asked(model, vocabulary, stop)
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        self._files = WeightFiles(settings.folder, run, settings.patience)
        self._replicas = Replicas(settings.timeout)
        self._servers = [VllmServer(url) for url in settings.urls]
        self._threads = concurrent.futures.ThreadPoolExecutor(len(self._servers), "servers")
        self._change = threading.Lock()
        self._version: int | None = None
        self._closed = False
        try:
            answering = Operation(self._answering())
            try:
                while not answering.done():
                    concurrent.futures.wait([answering], timeout=_LOOK_EVERY)
                    waiting()
                answering.result()
            finally:
                answering.cancel()
            list(self._threads.map(self._check, self._servers))
        except BaseException:
            self.close()
            raise

    def servers(self) -> Sequence[str]:
        """See Engine."""
        return [server.url for server in self._living()]

    async def generate(self, request: SampleRequest) -> Completion:
        """See Engine."""
        body = self._asked.body(request)
        while True:  # each failure loses a server
            server = self._choose(request.server)
            call = self._replicas.post(server.url, GENERATE, body)
            server.calls.add(call)
            try:
                answer = await call
                self._refuse_other_weights(server.url, versions(answer))
                if not server.lost:
                    return completion(answer, server.url)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not server.lost or (task and task.cancelling()):
                    raise
            except (KeyError, IndexError, TypeError, ValueError) as error:
                why = (
                    f"vLLM at {server.url} answered what is no completion "
                    f"({type(error).__name__}: {error}): {str(answer)[:300]}"
                )
                self._lose(server, why)
            except EngineError as error:
                if isinstance(error, Refused) and error.status < 500:
                    raise
                self._lose(server, str(error))
            finally:
                server.calls.discard(call)

    def pause(self) -> None:
        """See Engine."""
        self._each("/pause?mode=keep")

    def resume(self) -> None:
        """See Engine."""
        self._each("/resume")

    def update_weights(self, weights: Weights, version: int) -> None:
        """See Engine. Caches from the old weights are recomputed, also for requests in flight."""
        self._version = version
        with self._files.written(weights, self._dtype) as path:
            call = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            self._each("/collective_rpc", call)
        self._each("/update_weight_version", {"new_version": str(version)})
        self._each("/reset_prefix_cache?reset_running_requests=true")

    def sleep(self) -> None:
        """See Engine. The servers keep their memory: they may have GPUs of their own."""

    def close(self) -> None:
        """See Engine. The servers keep running."""
        if not self._closed:
            self._closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            for server in self._servers:
                for call in tuple(server.calls):
                    call.cancel()
            self._files.close()
            self._replicas.close()

    async def _answering(self) -> None:
        """Wait until every server answers; name all that do not."""
        found = await asyncio.gather(*map(self._silence, self._servers))
        if silent := [each for each in found if each]:
            raise EngineError(
                f"for engine.patience={self._settings.patience:g} s a vLLM server did not answer "
                f"({'; '.join(silent)}): start it, or take it from engine.urls"
            )

    async def _silence(self, server: VllmServer) -> str:
        """Return why a server has not answered in time; "" once it answers."""
        deadline = time.monotonic() + self._settings.patience
        for pause in pauses():
            try:
                await self._replicas.get(server.url, "/v1/models", within=_HEALTH)
            except EngineError as error:
                if time.monotonic() + pause > deadline:
                    return str(error)
            else:
                break
            await asyncio.sleep(pause)
        return ""

    def _check(self, server: VllmServer) -> None:
        check(self._replicas, server.url, self._settings, self._asked)

    def _choose(self, preferred: str) -> VllmServer:
        """Return the preferred server if it lives, else the least busy one."""
        living = self._living()
        for server in living:
            if server.url == preferred:
                return server
        return min(living, key=lambda server: len(server.calls))

    def _living(self) -> list[VllmServer]:
        living = [server for server in self._servers if not server.lost]
        if not living:
            reasons = "; ".join(server.lost for server in self._servers)
            raise EngineError(
                f"no vLLM server is left ({reasons}): start them, and the run again, which goes on "
                "from its checkpoint"
            )
        return living

    def _each(self, path: str, body: JSON | None = None) -> None:
        """Post to every server that is not lost, concurrently; an EngineError loses that server."""

        def attempt(server: VllmServer) -> None:
            try:
                self._replicas.post(server.url, path, body).result()
            except EngineError as error:
                self._lose(server, str(error))

        list(self._threads.map(attempt, self._living()))
        self._living()

    def _lose(self, server: VllmServer, why: str) -> None:
        """Stop using a server, and cancel its pending calls."""
        with self._change:
            if server.lost or self._closed:
                return
            server.lost = why
            left = sum(not each.lost for each in self._servers)
        _log.warning("%s; %d of %d servers are left", why, left, len(self._servers))
        for call in tuple(server.calls):
            call.cancel()

    def _refuse_other_weights(self, url: str, found: list[int | None]) -> None:
        """Raise EngineError if a server restarted unnoticed, and so sampled with its initial weights."""
        if self._version is not None and None in found:
            raise EngineError(f"vLLM at {url} was started anew and has not the run's weights")
