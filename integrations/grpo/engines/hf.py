"""The engine without vLLM: a transformers model with batched requests."""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.attention import longest_packed
from sandboxkit.integrations.grpo.engines import (
    Completion,
    Engine,
    EngineError,
    SampleRequest,
    Weights,
)

__all__ = ["HFEngine"]

_PIECE = 256
"""Number of vocabulary entries per cumulative sum."""

Asked = tuple[SampleRequest, "Future[Completion]"]


class HFEngine(Engine):
    """Samples on its own thread, in batches of the requests that arrived in one turn of the event loop.

    Each request has its own random numbers, from its seed, independent of the batch. A finished
    request is answered while the others continue. `stop` are the ids that end a completion.
    """

    def __init__(
        self, model: PreTrainedModel, *, stop: Collection[int], max_batch: int = 256
    ) -> None:
        self._model = model.eval()
        # transformers 5.24 renamed the argument.
        newer = "cache" in inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if newer else "past_key_values"
        self._stop = torch.tensor(sorted(stop), device=model.device)
        self._max_batch = max_batch
        self._version = 0
        self._queue: deque[Asked] = deque()
        self._thread = ThreadPoolExecutor(1, "sampling")
        self._between_tokens = threading.Lock()
        self._closed = False

    async def generate(self, request: SampleRequest) -> Completion:
        future: Future[Completion] = Future()
        self._queue.append((request, future))
        await asyncio.sleep(0)  # so that the other requests of this turn are in the queue as well
        if self._closed:
            raise EngineError("the engine was closed")
        self._thread.submit(self._answer)
        return await asyncio.wrap_future(future)

    async def score(self, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        def run() -> tuple[float, ...]:
            row = torch.tensor([ids], device=self._model.device)
            with self._between_tokens, torch.no_grad():
                logp_1TV = self._model(input_ids=row).logits.float().log_softmax(-1)
            return tuple(logp_1TV[:, :-1].gather(-1, row[:, 1:, None])[0, :, 0].tolist())

        return await asyncio.wrap_future(self._thread.submit(run))

    def pause(self) -> None:
        self._between_tokens.acquire()

    def resume(self) -> None:
        self._between_tokens.release()

    def update_weights(self, weights: Weights, version: int) -> None:
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
        self._closed = True
        self._thread.shutdown()

    def _answer(self) -> None:
        """Sample the waiting requests, if any are left."""
        batch: list[Asked] = []
        while self._queue and len(batch) < self._max_batch:
            asked = self._queue.popleft()
            if asked[1].set_running_or_notify_cancel():
                batch.append(asked)
        try:
            if batch:
                with torch.no_grad():
                    self._sample(batch)
        except Exception as error:  # noqa: BLE001 - passed on to the requests
            failed = error if isinstance(error, EngineError) else EngineError(f"sampling: {error}")
            for _, future in batch:
                if not future.done():
                    future.set_exception(failed)

    def _sample(self, batch: Sequence[Asked]) -> None:
        """Sample B requests, of which G are still active, from U distinct prefixes.

        Equal prefixes (prompt and completion so far) are computed once. Finished requests are
        answered, and leave the batch.
        """
        requests = [request for request, _ in batch]
        device = self._model.device
        prompts = {ids: index for index, ids in enumerate(dict.fromkeys(r.ids for r in requests))}
        steps = max(request.max_tokens for request in requests)
        chances_BT = torch.stack([_uniform(request, steps) for request in requests]).to(device)
        temperature_B1 = torch.tensor([[r.temperature] for r in requests], device=device)
        limits_B = torch.tensor([request.max_tokens for request in requests], device=device)
        tokens_BT = torch.zeros(len(requests), steps, dtype=torch.long, device=device)
        logp_BT = torch.zeros(len(requests), steps, device=device)
        inputs, mask = (each.to(device) for each in _left_padded(list(prompts)))
        # Layers with a state need a cache of another kind, which the configuration names.
        own = None if longest_packed(self._model) else self._model.config
        cache = DynamicCache(config=own)
        version = self._version
        going_G = torch.arange(len(requests), device=device)
        # The index of each active request's prefix.
        from_G = torch.tensor([prompts[request.ids] for request in requests], device=device)
        for step in range(steps):
            if self._closed:
                raise EngineError("the engine was closed")
            with self._between_tokens:
                output: Any = self._model(  # Any: transformers' outputs are untyped here
                    input_ids=inputs,
                    attention_mask=mask,
                    position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -inputs.shape[1] :],
                    use_cache=True,
                    logits_to_keep=1,
                    **{self._cache_argument: cache},
                )
            logits_UV = output.logits[:, -1].float()
            token_G, logp_G = _choose(
                logits_UV[from_G], temperature_B1[going_G], chances_BT[going_G, step]
            )
            tokens_BT[going_G, step], logp_BT[going_G, step] = token_G, logp_G
            ends_G = torch.isin(token_G, self._stop) | (step + 1 >= limits_B[going_G])
            if ends_G.any():
                of = going_G[ends_G]
                ids, logp = tokens_BT[of, : step + 1].tolist(), logp_BT[of, : step + 1].tolist()
                written = zip(of.tolist(), ids, logp, strict=True)
                for i, t, p in written:
                    batch[i][1].set_result(Completion(tuple(t), tuple(p), version))
                if len(of) == len(going_G):
                    return
                going_G, token_G, from_G = going_G[~ends_G], token_G[~ends_G], from_G[~ends_G]
            size = logits_UV.shape[-1]
            next_U, now_G = torch.unique(from_G * size + token_G, return_inverse=True)
            before_U, from_G = next_U // size, now_G
            if before_U.tolist() != list(range(len(mask))):
                cache.reorder_cache(before_U)
                mask = mask[before_U]
            inputs = (next_U % size)[:, None]
            mask = torch.cat([mask, torch.ones_like(inputs)], 1)


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, of shape [prompts, length of the longest]."""
    rows = [torch.tensor(prompt) for prompt in prompts]
    ids, mask = (
        nn.utils.rnn.pad_sequence(each, batch_first=True, padding_side="left")
        for each in (rows, [torch.ones_like(row) for row in rows])
    )
    return ids, mask


def _uniform(request: SampleRequest, count: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(request.seed)
    # The prefix must not depend on `count`.
    return torch.rand(max(count, 16), generator=numbers, dtype=torch.float64)[:count]


def _choose(
    logits_BV: torch.Tensor, temperature_B1: torch.Tensor, chance_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample a token per row by inverting the cumulative distribution; return ids and log-probabilities."""
    greedy = temperature_B1 == 0
    logp_BV = torch.log_softmax(logits_BV / torch.where(greedy, 1.0, temperature_B1), -1)
    drawn = _drawn(logp_BV.exp(), chance_B[:, None])
    token_B1 = torch.where(greedy, logits_BV.argmax(-1, keepdim=True), drawn)
    token_B1 = token_B1.clamp(max=logits_BV.shape[-1] - 1)
    return token_B1[:, 0], logp_BV.gather(-1, token_B1)[:, 0]


def _drawn(share_BV: torch.Tensor, chance_B1: torch.Tensor) -> torch.Tensor:
    """Return the index at which the cumulative sum reaches `chance` * total, [B, 1].

    Searches the pieces first, then inside one piece: a float64 cumulative sum over the whole
    vocabulary would take longer than a small model's forward pass.
    """
    batch, vocabulary = share_BV.shape
    padded = nn.functional.pad(share_BV, (0, -vocabulary % _PIECE)).view(batch, -1, _PIECE)
    ends_BP = padded.sum(-1, dtype=torch.float64).cumsum(-1)
    reached_B1 = chance_B1 * ends_BP[:, -1:]
    piece_B1 = torch.searchsorted(ends_BP, reached_B1, right=True).clamp(max=padded.shape[1] - 1)
    before_B1 = nn.functional.pad(ends_BP, (1, 0)).gather(-1, piece_B1)
    inside_BI = (
        padded[torch.arange(batch, device=padded.device), piece_B1[:, 0]].double().cumsum(-1)
    )
    index_B1 = torch.searchsorted(inside_BI, reached_B1 - before_B1, right=True)
    return piece_B1 * _PIECE + index_B1.clamp(max=_PIECE - 1)
