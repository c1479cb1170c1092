"""vLLM in this process: continuous batching on its own thread, weights passed in memory.

With tensor parallelism vLLM has a process for each GPU, and weights are passed in files.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMError
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.engines import (
    Completion,
    Engine,
    EngineError,
    SampleRequest,
    Weights,
)
from sandboxkit.integrations.grpo.engines.vllm_calls import sampling
from sandboxkit.integrations.grpo.engines.weight_files import WeightFiles

__all__ = ["VLLMEngine"]

_RELOADED_WRONG = ("qwen3_moe",)
"""Model types whose weights vLLM 0.32 reloads wrongly on CPUs: log-probabilities change by 4.4 on average."""


class VLLMEngine(Engine):
    """Samples with vLLM; requests join the running batch at once and leave it when done.

    `stop` are the ids that end a completion, `run` is the run's folder. A process can have only one
    such engine at a time, since vLLM keeps global state. Raises ConfigurationError if vLLM cannot run
    the model.
    """

    def __init__(self, settings: Settings, *, model: str, stop: Collection[int], run: str) -> None:
        family = AutoConfig.from_pretrained(model).model_type
        if current_platform.is_cpu() and family in _RELOADED_WRONG:
            raise ConfigurationError(
                f"model {model!r} is a {family}, whose weights vLLM reloads wrongly on CPUs: use "
                "engine.kind='hf', or a GPU"
            )
        self._timeout, self._dtype = settings.timeout, getattr(torch, settings.dtype)
        self._stop = stop
        parallel = settings.tensor_parallel_size > 1
        self._files = WeightFiles(settings.folder, run, settings.patience) if parallel else None
        self._sleeps, self._asleep = current_platform.is_sleep_mode_available(), False
        self._changed = threading.Condition()
        self._asked: list[tuple[tuple[int, ...], SamplingParams, Future[RequestOutput]]] = []
        self._flying: dict[str, Future[RequestOutput]] = {}
        self._paused = self._stepping = self._closed = False
        self._ended = ""
        """Why sampling has ended; empty while it runs."""
        self._numbers = itertools.count()
        # Run vLLM's core in this process as well; vLLM reads these when it is created.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        self._own_group = not dist.is_initialized()
        self._threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
        try:
            self._engine = LLMEngine.from_engine_args(
                EngineArgs(
                    model=model,
                    skip_tokenizer_init=True,
                    dtype=settings.dtype,
                    max_model_len=settings.max_model_tokens,
                    max_num_seqs=settings.max_batch,
                    max_num_batched_tokens=max(2048, settings.max_model_tokens),
                    # On CPUs vLLM 0.32 cannot sample with a seed after a chunked prefill.
                    enable_chunked_prefill=not current_platform.is_cpu(),
                    kv_cache_memory_bytes=int(settings.cache_gb * 2**30) or None,
                    gpu_memory_utilization=settings.gpu_memory_utilization,
                    tensor_parallel_size=settings.tensor_parallel_size,
                    logprobs_mode="processed_logprobs",  # at the request's temperature
                    distributed_executor_backend="mp" if parallel else "uni",
                    enforce_eager=settings.enforce_eager,
                    enable_sleep_mode=self._sleeps,
                    async_scheduling=False,
                    disable_log_stats=True,
                )
            )
        except (RuntimeError, ValueError, VLLMError) as error:
            raise ConfigurationError(f"vLLM cannot run model {model!r}: {error}") from error
        finally:
            torch.set_num_threads = set_num_threads  # vLLM disables it permanently
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    async def generate(self, request: SampleRequest) -> Completion:
        return _completion((await self._output(request)).outputs[0])

    async def score(self, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        output = await self._output(SampleRequest(ids, 1, 1.0, 0), prompt_logprobs=0)
        assert output.prompt_logprobs is not None
        each = zip(ids[1:], output.prompt_logprobs[1:], strict=True)
        return tuple(found[token].logprob for token, found in each if found is not None)

    # Any: vLLM's sampling parameters.
    async def _output(self, request: SampleRequest, **more: Any) -> RequestOutput:
        future: Future[RequestOutput] = Future()
        kind = RequestOutputKind.FINAL_ONLY
        parameters = SamplingParams(**sampling(request, self._stop), output_kind=kind, **more)
        with self._changed:
            if self._ended:
                raise EngineError(self._ended)
            self._asked.append((request.ids, parameters, future))
            self._changed.notify_all()
        return await asyncio.wrap_future(future)

    def pause(self) -> None:
        with self._changed:
            self._paused = True
            if not self._changed.wait_for(lambda: not self._stepping, self._timeout):
                raise EngineError(f"vLLM samples a token for longer than {self._timeout:g} s")

    def resume(self) -> None:
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def update_weights(self, weights: Weights, version: int) -> None:
        # The caches from the old weights are recomputed, also for requests in flight.
        if self._asleep:
            torch.accelerator.empty_cache()  # the trainer's unused memory, which vLLM needs
            self._engine.wake_up()
            self._asleep = False
        try:
            if self._files is None:
                self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            else:
                with self._files.written(weights, self._dtype) as path:
                    self._engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
        except (AssertionError, KeyError, RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"vLLM does not take the weights ({type(error).__name__}: {error}): give the "
                "engine the model that is trained"
            ) from error
        self._engine.reset_prefix_cache(reset_running_requests=True)
        self._engine.set_weight_version(str(version))

    def sleep(self) -> None:
        if self._sleeps:
            self.pause()
            self._engine.sleep()
            self._asleep = True

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._ended = self._ended or "the engine was closed"
            self._changed.notify_all()
        self._thread.join(self._timeout)
        self._engine.engine_core.shutdown()
        parallel_state.destroy_model_parallel()
        if self._own_group:
            parallel_state.destroy_distributed_environment()
        if self._files is not None:
            self._files.close()

    def _run(self) -> None:
        failed = ""
        torch.set_num_threads(self._threads)  # OpenMP's setting is per thread
        try:
            while self._may_step():
                self._step()
        except Exception as error:  # noqa: BLE001 - passed on to all waiting requests
            failed = f"vLLM stopped: {type(error).__name__}: {error}"
        with self._changed:
            self._ended = self._ended or failed
            self._stepping = False
            self._changed.notify_all()
            waiting = [*(future for *_, future in self._asked), *self._flying.values()]
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError(self._ended))

    def _may_step(self) -> bool:
        """Wait until there is a request and no pause; return False once the engine has ended."""

        def ready() -> bool:
            return bool(self._ended or (not self._paused and (self._asked or self._flying)))

        with self._changed:
            self._stepping = False
            self._changed.notify_all()
            self._changed.wait_for(ready)
            self._stepping = not self._ended
            return self._stepping

    def _step(self) -> None:
        """Add new requests, drop cancelled ones, and sample a token for each request in flight."""
        while self._asked:
            ids, parameters, future = self._asked.pop(0)
            name = str(next(self._numbers))
            self._flying[name] = future
            try:
                self._engine.add_request(name, tokens_input(list(ids)), parameters)
            except (ValueError, VLLMError) as error:
                del self._flying[name]
                if future.set_running_or_notify_cancel():
                    future.set_exception(EngineError(f"vLLM refuses the request: {error}"))
        given_up = [name for name, future in self._flying.items() if future.cancelled()]
        for name in given_up:
            self._flying.pop(name).set_running_or_notify_cancel()
        self._engine.abort_request(given_up)
        for output in self._engine.step():
            if not output.finished:
                continue
            future = self._flying.pop(output.request_id)
            if future.set_running_or_notify_cancel():
                future.set_result(output)


def _completion(output: CompletionOutput) -> Completion:
    ids, chosen, spans = tuple(output.token_ids), output.logprobs, output.weight_versions
    assert chosen is not None
    assert spans
    logp = tuple(each[token].logprob for token, each in zip(ids, chosen, strict=True))
    version = spans[0].version
    return Completion(ids, logp, 0 if version == "default" else int(version))
