"""Inference engines: one small interface, with an implementation in each file here."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Completion", "Engine", "EngineError", "SampleRequest", "Weights"]

Weights = Iterable[tuple[str, torch.Tensor]]
"""Pairs of name and full tensor, each gathered when the iterator reaches it.

The names are those of the model's files; for hf those of its state_dict."""


class EngineError(RuntimeError):
    """The engine cannot sample, so the run stops."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A prompt to continue."""

    ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    """0: greedy sampling."""
    seed: int
    server: str = ""
    """The server that generated the prompt's last turn, which may have it in its prefix cache."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The sampled tokens."""

    ids: tuple[int, ...]
    """Token ids, including the end-of-sequence token if there was one."""
    logp: tuple[float, ...]
    """Log-probability in nats of each token when it was sampled, at the request's temperature."""
    version: int
    """Version of the weights that sampled the first token."""
    server: str = ""
    """The server that generated it, if the engine has several."""


class Engine(ABC):
    """Samples completions; its weights can be updated while it runs.

    `pause` returns when no token is being sampled. Requests in flight continue after `resume`, with
    the new weights if `update_weights` was called in between.
    """

    def servers(self) -> Sequence[str]:
        """Return the URLs of the servers in use; one empty name for an engine in this process."""
        return ("",)

    @abstractmethod
    async def generate(self, request: SampleRequest) -> Completion:
        """Sample one completion. Cancelling aborts the request. Raises EngineError."""

    @abstractmethod
    async def score(self, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        """Return the log-probability (nats, temperature 1) of each token but the first.

        `server` is one of `servers`. Raises EngineError.
        """

    @abstractmethod
    def pause(self) -> None:
        """Stop sampling until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Continue sampling."""

    @abstractmethod
    def update_weights(self, weights: Weights, version: int) -> None:
        """Replace the weights while paused. Raises ConfigurationError for those of another model."""

    def sleep(self) -> None:
        """Free memory that training can use, until `update_weights`. No request may be in flight.

        Does nothing for an engine that holds none, or has GPUs of its own.
        """

    @abstractmethod
    def close(self) -> None:
        """Abort the requests in flight and release all resources."""
