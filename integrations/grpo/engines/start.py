"""Start of the configured engine."""

from collections.abc import Collection

import torch

from sandboxkit import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.engines import Engine
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.engines.vllm_server import VLLMServers, Wait
from sandboxkit.integrations.grpo.model import load

__all__ = ["start"]


def start(
    config: Config,
    *,
    stop: Collection[int],
    vocabulary: int,
    ranks: int,
    wait: Wait = lambda work: Operation(work).result(),
) -> Engine:
    """Return the engine, ready to sample, with the weights of `model.name`.

    `stop` are the ids that end a completion; `vocabulary` is the model's number of tokens. `wait`
    waits for the servers, and may raise to end that. Raises ConfigurationError or EngineError.
    """
    settings, model = config.engine, config.model.name
    if settings.kind == "vllm_server":
        return VLLMServers(
            settings,
            model=model,
            vocabulary=vocabulary,
            stop=stop,
            run=config.run.folder,
            wait=wait,
        )
    if settings.kind == "vllm":
        if ranks > 1:
            raise ConfigurationError(
                f"engine.kind='vllm' is for one rank and there are {ranks}: start vLLM as a "
                "server, and give engine.kind='vllm_server' and engine.urls"
            )
        try:
            from sandboxkit.integrations.grpo.engines.vllm import VLLMEngine
        except ImportError as error:
            raise ConfigurationError(
                f"engine.kind='vllm' needs vLLM ({error}): pip install 'sandboxkit-sdk[grpo]', or, "
                "without a GPU, run scripts/vllm-cpu.sh"
            ) from error
        return VLLMEngine(settings, model=model, stop=stop, run=config.run.folder)
    kept = load(model).to(settings.device, getattr(torch, settings.dtype))
    return HFEngine(kept, stop=stop, max_batch=settings.max_batch)
