"""The engine without vLLM: transformers' own model, requests batched as they come."""

import asyncio
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import Completion, EngineError, Request, Weights

__all__ = ["HFEngine"]


class HFEngine:
    """Samples on a thread of its own: what has been asked for in one turn of the loop together.

    A request's random numbers are its own, from its seed, so what it is batched with does not
    change them. `stop` are the ids that end a completion.
    """

    def __init__(
        self, model: PreTrainedModel, *, stop: Collection[int], max_batch: int = 256
    ) -> None:
        self._model = model.eval()
        self._stop = torch.tensor(sorted(stop), device=model.device)
        self._max_batch = max_batch
        self._version = 0
        self._waiting: list[tuple[Request, Future[Completion]]] = []
        self._thread = ThreadPoolExecutor(1, "sampling")
        self._between_tokens = threading.Lock()
        self._closed = False

    async def generate(self, request: Request) -> Completion:
        """See Engine."""
        future: Future[Completion] = Future()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append((request, future))
        return await asyncio.wrap_future(future)

    def pause(self) -> None:
        """See Engine."""
        self._between_tokens.acquire()

    def resume(self) -> None:
        """See Engine."""
        self._between_tokens.release()

    def update_weights(self, weights: Weights, version: int) -> None:
        """See Engine."""
        own = self._model.state_dict()
        with torch.no_grad():
            for name, value in weights:
                if name not in own or own[name].shape != value.shape:
                    have = f"of shape {tuple(own[name].shape)}" if name in own else "not there"
                    raise ConfigurationError(
                        f"weight {name!r} of shape {tuple(value.shape)} is {have} in the engine's "
                        "model: give the engine the model that is trained"
                    )
                own[name].copy_(value)
        self._version = version

    def close(self) -> None:
        """See Engine."""
        self._closed = True
        self._thread.shutdown()

    def _flush(self) -> None:
        waiting = [(r, f) for r, f in self._waiting if f.set_running_or_notify_cancel()]
        self._waiting = []
        for start in range(0, len(waiting), self._max_batch):
            batch = waiting[start : start + self._max_batch]
            try:
                self._thread.submit(self._answer, batch)
            except RuntimeError as error:  # closed meanwhile
                for _, future in batch:
                    future.set_exception(EngineError(str(error)))

    def _answer(self, batch: Sequence[tuple[Request, Future[Completion]]]) -> None:
        try:
            with torch.no_grad():
                done = self._sample([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - who asked gets it
            failed = error if isinstance(error, EngineError) else EngineError(f"sampling: {error}")
            for _, future in batch:
                future.set_exception(failed)
            return
        for (_, future), completion in zip(batch, done, strict=True):
            future.set_result(completion)

    def _sample(self, requests: Sequence[Request]) -> list[Completion]:
        """B requests, the T tokens of the longest prompt, padded on the left."""
        device = self._model.device
        longest = max(len(request.ids) for request in requests)
        steps = max(request.max_tokens for request in requests)
        ids = torch.tensor([[0] * (longest - len(r.ids)) + list(r.ids) for r in requests])
        mask = torch.tensor([[0] * (longest - len(r.ids)) + [1] * len(r.ids) for r in requests])
        chances = torch.stack([_uniform(request, steps) for request in requests]).to(device)
        temperature = torch.tensor([r.temperature for r in requests], device=device)[:, None]
        limits = torch.tensor([request.max_tokens for request in requests], device=device)
        going = torch.ones(len(requests), dtype=torch.bool, device=device)
        inputs, mask_BT, cache = ids.to(device), mask.to(device), DynamicCache()
        tokens, logps, counts = [], [], torch.zeros_like(limits)
        version = self._version
        for step in range(steps):
            if self._closed:
                raise EngineError("the engine was closed")
            with self._between_tokens, torch.no_grad():
                output: Any = self._model(  # Any: transformers' outputs are untyped here
                    input_ids=inputs,
                    attention_mask=mask_BT,
                    position_ids=(mask_BT.cumsum(1) - 1).clamp(min=0)[:, -inputs.shape[1] :],
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            token, logp = _choose(output.logits[:, -1].float(), temperature, chances[:, step])
            tokens.append(token)
            logps.append(logp)
            counts += going
            going &= ~torch.isin(token, self._stop) & (counts < limits)
            if not going.any():
                break
            inputs = token[:, None]
            mask_BT = torch.cat([mask_BT, torch.ones_like(inputs)], 1)
        sampled = zip(torch.stack(tokens, 1).tolist(), torch.stack(logps, 1).tolist(), strict=True)
        return [
            Completion(tuple(row[:count]), tuple(logp[:count]), version)
            for (row, logp), count in zip(sampled, counts.tolist(), strict=True)
        ]


def _uniform(request: Request, count: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(request.seed)
    # The first ones are the same however many are drawn.
    return torch.rand(max(count, 16), generator=numbers, dtype=torch.float64)[:count]


def _choose(
    logits_BV: torch.Tensor, temperature_B1: torch.Tensor, chance_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row and its log-probability, by inversion of the cumulated distribution."""
    greedy = temperature_B1 == 0
    logp_BV = torch.log_softmax(logits_BV / torch.where(greedy, 1.0, temperature_B1), -1)
    cumulated = logp_BV.double().exp().cumsum(-1)
    drawn = torch.searchsorted(cumulated, chance_B[:, None] * cumulated[:, -1:], right=True)
    token_B1 = torch.where(greedy, logits_BV.argmax(-1, keepdim=True), drawn)
    token_B1 = token_B1.clamp(max=logits_BV.shape[-1] - 1)
    return token_B1[:, 0], logp_BV.gather(-1, token_B1)[:, 0]
