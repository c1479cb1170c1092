"""What samples completions: one small protocol, and a program that speaks it in each file here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["Completion", "Engine", "EngineError", "Request", "Weights"]

Weights = Iterable[tuple[str, torch.Tensor]]
"""Names as in the model's state_dict, whole tensors, each made when it is asked for."""


class EngineError(RuntimeError):
    """The engine cannot sample: the run stops, for no rollout can go on."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to go on from."""

    ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    """0 takes the likeliest token."""
    seed: int
    server: str = ""
    """Of the engine's servers, the one that wrote what this goes on from: it may have it in memory."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled, exactly."""

    ids: tuple[int, ...]
    """The end-of-sequence token included, where there was one."""
    logp: tuple[float, ...]
    """Of each token, at the request's temperature, when it was sampled; nats."""
    version: int
    """Of the weights that its first token was sampled with."""
    server: str = ""
    """That wrote it, of an engine that has several."""


class Engine(Protocol):
    """Samples with weights that it is given while it runs.

    `pause` returns once no token is being sampled; requests in flight stay, and go on at
    `resume`, with the weights of an `update_weights` in between.
    """

    async def generate(self, request: Request) -> Completion:
        """Sample one completion. Cancelling gives it up. Raises EngineError."""
        ...

    def pause(self) -> None:
        """Stop sampling until `resume`."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def update_weights(self, weights: Weights, version: int) -> None:
        """Take other weights, while paused. Raises ConfigurationError for another model's."""
        ...

    def close(self) -> None:
        """Give up what is in flight and leave nothing running."""
        ...
