"""vLLM servers, on this machine or others: token ids in and out, each request to the least busy."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.config import Engine as Settings
from sandboxkit.integrations.grpo.engines import Completion, EngineError, Request, Weights
from sandboxkit.integrations.grpo.engines.replicas import JSON, Refused, Replicas
from sandboxkit.integrations.grpo.engines.transfer import (
    Broadcast,
    Disk,
    Transfer,
    end_update,
)

__all__ = ["VLLMServers"]


class VLLMServers:
    """Servers that somebody started, all of the same model, which they serve as `model`.

    `vocabulary` is the model's number of tokens. Raises ConfigurationError when a server is not
    as this needs it, EngineError when one cannot be reached.
    """

    def __init__(
        self, settings: Settings, *, model: str, vocabulary: int, stop: Collection[int]
    ) -> None:
        self._model, self._stop = model, sorted(stop)
        self._replicas = Replicas(settings.urls, settings.timeout)
        self._busy = Counter(dict.fromkeys(settings.urls, 0))
        self._transfer: Transfer | None = None
        try:
            for url in settings.urls:
                self._check(url, settings, vocabulary)
            dtype = getattr(torch, settings.dtype)
            if settings.transfer == "disk":
                self._transfer = Disk(self._replicas, folder=settings.folder, dtype=dtype)
            else:
                self._transfer = Broadcast(
                    self._replicas,
                    backend=settings.transfer,
                    address=settings.address,
                    dtype=dtype,
                )
        except BaseException:
            self._replicas.close()
            raise

    async def generate(self, request: Request) -> Completion:
        """See Engine."""
        url = min(self._busy, key=self._busy.__getitem__)
        self._busy[url] += 1
        try:
            answer = await self._replicas.post(url, "/inference/v1/generate", self._body(request))
        finally:
            self._busy[url] -= 1
        try:
            return _completion(answer)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"vLLM at {url} answered what is no completion ({type(error).__name__}: {error}): "
                f"{str(answer)[:300]}"
            ) from error

    def pause(self) -> None:
        """See Engine."""
        self._all("/pause?mode=keep")

    def resume(self) -> None:
        """See Engine."""
        self._all("/resume")

    def update_weights(self, weights: Weights, version: int) -> None:
        """See Engine. What was computed from the old ones, in flight too, is computed again."""
        assert self._transfer is not None
        self._transfer.send(weights, version)
        self._all("/reset_prefix_cache?reset_running_requests=true")

    def close(self) -> None:
        """See Engine. The servers stay."""
        if self._transfer is not None:
            self._transfer = None
            self._replicas.close()

    def _all(self, path: str) -> None:
        self._replicas.wait_all(self._replicas.post_all(path))

    def _body(self, request: Request, **more: Any) -> JSON:  # Any: vLLM's sampling parameters
        return {
            "model": self._model,
            "token_ids": request.ids,
            "sampling_params": {
                "temperature": request.temperature,
                "seed": request.seed,
                "max_tokens": request.max_tokens,
                "stop_token_ids": self._stop,
                "ignore_eos": True,  # it is among them
                "logprobs": 0,
                "detokenize": False,
                **more,
            },
        }

    def _check(self, url: str, settings: Settings, vocabulary: int) -> None:
        max_model_tokens, transfer = settings.max_model_tokens, settings.transfer
        models = self._replicas.get(url, "/v1/models").result()["data"]
        served = {each["id"]: each["max_model_len"] for each in models}
        if self._model not in served:
            raise ConfigurationError(
                f"vLLM at {url} serves {', '.join(served)}, the run trains {self._model!r}: start "
                f"it with that model, and --served-model-name {self._model}"
            )
        if served[self._model] < max_model_tokens:
            raise ConfigurationError(
                f"vLLM at {url} takes {served[self._model]} tokens, engine.max_model_tokens="
                f"{max_model_tokens}: start it with --max-model-len {max_model_tokens}"
            )
        if transfer != "disk":
            end_update(self._replicas, url, transfer)
        try:
            self._replicas.post(url, "/resume").result()  # a run that was killed had paused it
        except Refused as error:
            raise ConfigurationError(
                f"vLLM at {url} has no control calls ({error}): start it with "
                "VLLM_SERVER_DEV_MODE=1"
            ) from error
        if self._probe(url, vocabulary - 1) is None or self._probe(url, vocabulary) is not None:
            raise ConfigurationError(
                f"vLLM at {url} serves a model of another vocabulary than the {vocabulary} tokens "
                f"of {self._model!r}: start it with that model"
            )
        if self._probe(url, vocabulary - 1) != 0.0:
            raise ConfigurationError(
                f"vLLM at {url} gives log-probabilities from before the temperature: start it "
                "with --logprobs-mode processed_logprobs"
            )

    def _probe(self, url: str, token: int) -> float | None:
        """The log-probability of a token that alone is allowed; None if there is no such token."""
        body = self._body(Request((0,), 1, 1.0, 0), allowed_token_ids=[token])
        try:
            answer = self._replicas.post(url, "/inference/v1/generate", body).result()
        except Refused as error:
            if error.status == 400:
                return None
            if error.status not in (403, 404):
                raise
            raise ConfigurationError(
                f"vLLM at {url} samples nothing ({error}): start it with --enable-scale-out"
            ) from error
        return _completion(answer).logp[0]


def _completion(answer: Any) -> Completion:  # Any: a server gave it
    (choice,) = answer["choices"]
    ids = tuple(choice["token_ids"])
    chosen = choice["logprobs"]["content"]
    logp = tuple(
        float(each["logprob"])
        for token, each in zip(ids, chosen, strict=True)
        if each["token_id"] == token
    )
    version = choice["weight_versions"][0]["version"]
    if len(logp) != len(ids) or choice["finish_reason"] == "abort":
        raise ValueError("it was given up")
    return Completion(ids, logp, 0 if version == "default" else int(version))
