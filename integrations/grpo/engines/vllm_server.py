"""Engine with vLLM servers: token ids in and out, each request to the least busy server.

Weights reach the servers as files in a folder that all of them see. A server that fails is not used
again in this run. Its requests restart on another one from the beginning of the turn, so that each
completion comes from one server.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

import torch

from sandboxkit import Operation
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.engines import (
    Completion,
    Engine,
    EngineError,
    SampleRequest,
    Weights,
)
from sandboxkit.integrations.grpo.engines.vllm_calls import (
    JSON,
    Refused,
    VllmServer,
    completion,
    prompt_logp,
    versions,
)
from sandboxkit.integrations.grpo.engines.weight_files import WeightFiles

__all__ = ["VLLMServers", "Wait"]

T = TypeVar("T")
# Any: the send and yield types of a coroutine, not used here.
Wait = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine to its end, and blocks meanwhile."""

_log = logging.getLogger("sandboxkit.grpo")


class VLLMServers(Engine):
    """An engine over running servers, which all serve the same model under the name `model`.

    `vocabulary` is the model's number of tokens, `run` the run's folder. The constructor waits with
    `wait`, which may raise to end that, until every server answers. It raises EngineError after
    `engine.patience` seconds, and ConfigurationError if a server is not set up as needed. Later every
    method raises EngineError once no server is left. `close` leaves the servers running.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: str,
        vocabulary: int,
        stop: Collection[int],
        run: str,
        wait: Wait = lambda work: Operation(work).result(),
    ) -> None:
        self._patience = settings.patience
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        self._files = WeightFiles(settings.folder, run, settings.patience)
        self._servers = [
            VllmServer(url, settings, model, vocabulary, stop) for url in settings.urls
        ]
        self._version: int | None = None
        self._closed = False
        try:
            wait(self._ready())
        except BaseException:
            self.close()
            raise

    def servers(self) -> Sequence[str]:
        return [server.url for server in self._living()]

    async def generate(self, request: SampleRequest) -> Completion:
        return await self._answered(request, completion)

    async def score(self, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        request = SampleRequest(ids, 1, 1.0, 0, server)
        return await self._answered(
            request, lambda answer, _: prompt_logp(answer, ids), prompt_logprobs=0
        )

    def pause(self) -> None:
        self._each("/pause?mode=keep")

    def resume(self) -> None:
        self._each("/resume")

    def update_weights(self, weights: Weights, version: int) -> None:
        # The caches from the old weights are recomputed, also for requests in flight.
        self._version = version
        with self._files.written(weights, self._dtype) as path:
            call = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            self._each("/collective_rpc", call)
        self._each("/update_weight_version", {"new_version": str(version)})
        self._each("/reset_prefix_cache?reset_running_requests=true")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._files.close()
            self._all(VllmServer.close)

    async def _ready(self) -> None:
        """Wait until every server answers, naming all that do not; then check each."""
        found = await asyncio.gather(*[server.silence() for server in self._servers])
        if silent := [each for each in found if each]:
            raise EngineError(
                f"for engine.patience={self._patience:g} s a vLLM server did not answer "
                f"({'; '.join(silent)}): start it, or take it from engine.urls"
            )
        await asyncio.gather(*[server.check() for server in self._servers])

    # Any: what a server answers, and vLLM's sampling parameters.
    async def _answered(
        self, request: SampleRequest, parse: Callable[[Any, str], T], **more: Any
    ) -> T:
        """Return what `parse` makes of the answer and the URL of the server that gave it."""
        while True:  # each failure loses a server
            server = self._choose(request.server)
            call = Operation(server.generate(request, **more))
            server.calls.add(call)
            try:
                answer = await call
                if self._version is not None and None in versions(answer):
                    raise EngineError(
                        f"vLLM at {server.url} was started anew and has not the run's weights"
                    )
                if not server.lost:
                    return parse(answer, server.url)
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

        async def attempt(server: VllmServer) -> None:
            try:
                if not server.lost:
                    await server.post(path, body)
            except EngineError as error:
                self._lose(server, str(error))

        self._all(attempt)
        self._living()

    def _all(self, call: Callable[[VllmServer], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            await asyncio.gather(*map(call, self._servers))

        Operation(run()).result()

    def _lose(self, server: VllmServer, why: str) -> None:
        """Stop using a server, and cancel its pending calls."""
        if server.lost or self._closed:
            return
        server.lost = why
        left = sum(not each.lost for each in self._servers)
        _log.warning("%s; %d of %d servers are left", why, left, len(self._servers))
        for call in tuple(server.calls):
            call.cancel()
