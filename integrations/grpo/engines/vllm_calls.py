"""Requests to a vLLM server, parsing of its answers, and a check that it is set up as needed."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.engines import Completion, SampleRequest
from sandboxkit.integrations.grpo.engines.replicas import JSON, Refused, Replicas

__all__ = ["GENERATE", "Asked", "check", "completion", "versions"]

GENERATE = "/inference/v1/generate"
_OWN = "default"


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters that all requests share."""

    model: str
    """The model's name on the servers."""
    vocabulary: int
    """Size of the model's vocabulary."""
    stop: Collection[int]

    def body(self, request: SampleRequest, **more: Any) -> JSON:  # Any: vLLM's sampling parameters
        """Return the body of a `GENERATE` call."""
        return {
            "model": self.model,
            "token_ids": request.ids,
            "sampling_params": {
                "temperature": request.temperature,
                "seed": request.seed,
                "max_tokens": request.max_tokens,
                "stop_token_ids": sorted(self.stop),
                "ignore_eos": True,  # the stop ids include it
                "logprobs": 0,
                "detokenize": False,
                **more,
            },
        }


def completion(answer: Any, url: str) -> Completion:  # Any: a server gave it
    """Parse the answer to `GENERATE`. Raises ValueError, LookupError or TypeError if it is invalid."""
    (choice,) = answer["choices"]
    ids = tuple(choice["token_ids"])
    chosen = choice["logprobs"]["content"]
    logp = tuple(
        float(each["logprob"])
        for token, each in zip(ids, chosen, strict=True)
        if each["token_id"] == token
    )
    if len(logp) != len(ids) or choice["finish_reason"] == "abort":
        raise ValueError("it was given up")
    return Completion(ids, logp, versions(answer)[0] or 0, url)


def versions(answer: Any) -> list[int | None]:  # Any: the same
    """Return the versions of the weights that wrote it, in order; None for the server's initial weights."""
    (choice,) = answer["choices"]
    named = [span["version"] for span in choice["weight_versions"]]
    return [None if version == _OWN else int(version) for version in named]


def check(replicas: Replicas, url: str, settings: Settings, asked: Asked) -> None:
    """Check that a server is ready for weights and requests.

    Raises ConfigurationError if the server was not started as needed, EngineError if it fails.
    """
    model, max_model_tokens = asked.model, settings.max_model_tokens
    models = replicas.get(url, "/v1/models").result()["data"]
    served = {each["id"]: each["max_model_len"] for each in models}
    if model not in served:
        raise ConfigurationError(
            f"vLLM at {url} serves {', '.join(served)}, the run trains {model!r}: start it with "
            f"that model, and --served-model-name {model}"
        )
    if served[model] < max_model_tokens:
        raise ConfigurationError(
            f"vLLM at {url} takes {served[model]} tokens, engine.max_model_tokens="
            f"{max_model_tokens}: start it with --max-model-len {max_model_tokens}"
        )
    try:
        replicas.post(url, "/resume").result()  # a killed run may have paused it
    except Refused as error:
        raise ConfigurationError(
            f"vLLM at {url} has no control calls ({error}): start it with VLLM_SERVER_DEV_MODE=1"
        ) from error
    last = _probe(replicas, url, asked, asked.vocabulary - 1)
    if last is None or _probe(replicas, url, asked, asked.vocabulary) is not None:
        raise ConfigurationError(
            f"vLLM at {url} serves a model of another vocabulary than the {asked.vocabulary} tokens "
            f"of {model!r}: start it with that model"
        )
    if completion(last, url).logp[0] != 0.0:
        raise ConfigurationError(
            f"vLLM at {url} gives log-probabilities from before the temperature: start it with "
            "--logprobs-mode processed_logprobs"
        )


def _probe(replicas: Replicas, url: str, asked: Asked, token: int) -> Any:  # Any: the same
    """Return the answer to a request that allows only `token`; None if there is no such token."""
    body = asked.body(SampleRequest((0,), 1, 1.0, 0), allowed_token_ids=[token])
    try:
        return replicas.post(url, GENERATE, body).result()
    except Refused as error:
        if error.status == 400:
            return None
        if error.status not in (403, 404):
            raise
        raise ConfigurationError(
            f"vLLM at {url} samples nothing ({error}): start it with --enable-scale-out"
        ) from error
