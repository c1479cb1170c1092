"""The engine without vLLM: a transformers model with batched requests."""

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines import Completion, EngineError, SampleRequest, Weights

__all__ = ["HFEngine"]

_PIECE = 256
"""Number of vocabulary entries per cumulative sum."""

Asked = tuple[SampleRequest, "asyncio.Future[Completion]"]
Answer = tuple["asyncio.Future[Completion]", Completion | EngineError]


class HFEngine:
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
        self._waiting: list[Asked] = []
        self._queue: deque[Asked] = deque()
        self._thread = ThreadPoolExecutor(1, "sampling")
        self._between_tokens = threading.Lock()
        self._closed = False

    def servers(self) -> Sequence[str]:
        """See Engine."""
        return ("",)

    async def generate(self, request: SampleRequest) -> Completion:
        """See Engine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((request, future))
        return await future

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

    def sleep(self) -> None:
        """See Engine. The model keeps its memory: it has no cache between requests."""

    def close(self) -> None:
        """See Engine."""
        self._closed = True
        self._thread.shutdown()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._queue.extend(waiting)
        try:
            for _ in range(0, len(waiting), self._max_batch):
                self._thread.submit(self._answer)
        except RuntimeError as error:  # closed meanwhile
            _settle([(future, EngineError(str(error))) for _, future in waiting])

    def _answer(self) -> None:
        """Sample the waiting requests, if any are left."""
        batch: list[Asked] = []
        while self._queue and len(batch) < self._max_batch:
            asked = self._queue.popleft()
            if not asked[1].cancelled():
                batch.append(asked)
        if not batch:
            return

        def ended(done: Sequence[tuple[int, Completion]]) -> None:
            _settle_all([(batch[index][1], completion) for index, completion in done])

        try:
            with torch.no_grad():
                self._sample([request for request, _ in batch], ended)
        except Exception as error:  # noqa: BLE001 - passed on to the requests
            failed = error if isinstance(error, EngineError) else EngineError(f"sampling: {error}")
            _settle_all([(future, failed) for _, future in batch])

    def _sample(
        self,
        requests: Sequence[SampleRequest],
        ended: Callable[[Sequence[tuple[int, Completion]]], None],
    ) -> None:
        """Sample B requests, of which G are still active, from U distinct prefixes.

        Equal prefixes (prompt and completion so far) are computed once. Finished requests are passed
        to `ended` with their index, and leave the batch.
        """
        device = self._model.device
        prompts = {ids: index for index, ids in enumerate(dict.fromkeys(r.ids for r in requests))}
        steps = max(request.max_tokens for request in requests)
        chances_BT = torch.stack([_uniform(request, steps) for request in requests]).to(device)
        temperature_B1 = torch.tensor([[r.temperature] for r in requests], device=device)
        limits_B = torch.tensor([request.max_tokens for request in requests], device=device)
        tokens_BT = torch.zeros(len(requests), steps, dtype=torch.long, device=device)
        logp_BT = torch.zeros(len(requests), steps, device=device)
        inputs, mask = (each.to(device) for each in _left_padded(list(prompts)))
        cache = DynamicCache()
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
                ended([(i, Completion(tuple(t), tuple(p), version)) for i, t, p in written])
                if len(of) == len(going_G):
                    return
                going_G, token_G, from_G = going_G[~ends_G], token_G[~ends_G], from_G[~ends_G]
            size = logits_UV.shape[-1]
            next_U, now_G = torch.unique(from_G * size + token_G, return_inverse=True)
            before_U, from_G = next_U // size, now_G
            if before_U.tolist() != list(range(len(mask))):
                cache.batch_select_indices(before_U)
                mask = mask[before_U]
            inputs = (next_U % size)[:, None]
            mask = torch.cat([mask, torch.ones_like(inputs)], 1)


def _settle_all(answers: Sequence[Answer]) -> None:
    """Settle the futures on their event loops; callable from any thread."""
    for loop in {future.get_loop() for future, _ in answers}:
        own = [(future, answer) for future, answer in answers if future.get_loop() is loop]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_settle, own)


def _settle(answers: Sequence[Answer]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, EngineError):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and attention mask, of shape [prompts, length of the longest]."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


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
