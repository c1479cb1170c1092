"""A server that speaks vLLM's HTTP protocol for a small model, for where vLLM takes too long to start.

It answers with what the model samples, by transformers, and loads weights from files. A request in flight goes on with new weights from where it is, where vLLM computes it again.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from sandboxkit.integrations.grpo.engines import SampleRequest
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.model import load
from tests.art import json_server

_OWN = -1
"""The version of the weights that it began with."""


class StandIn:
    """One server's state; a call is a method, which gets the body and returns the answer."""

    def __init__(self, folder: str, stop: int) -> None:
        torch.set_num_threads(1)
        model = load(folder)
        self._name, self._size = folder, model.config.vocab_size
        self._engine = HFEngine(model, stop=[stop])
        self._engine.update_weights((), _OWN)
        self._paused = False
        self._loaded: dict[str, torch.Tensor] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.answers: dict[str, Callable[[dict[str, Any]], object]] = {
            "/v1/models": lambda _: {"data": [{"id": self._name, "max_model_len": 64}]},
            "/inference/v1/generate": self.generate,
            "/pause": self.pause,
            "/resume": self.resume,
            "/collective_rpc": self.call,
            "/update_weight_version": self.stamp,
            "/reset_prefix_cache": lambda _: None,
        }

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        how = body["sampling_params"]
        for token in how.get("allowed_token_ids", ()):
            if token >= self._size:
                raise ValueError(f"no token {token}")
            return self._answer([token], [0.0], _OWN)
        limits = how["max_tokens"], how["temperature"], how["seed"]
        request = SampleRequest(tuple(body["token_ids"]), *limits)
        made = asyncio.run_coroutine_threadsafe(self._engine.generate(request), self._loop)
        done = made.result(60)
        answer = self._answer(list(done.ids), list(done.logp), done.version)
        if how.get("prompt_logprobs") is not None:
            work = self._engine.score(request.ids)
            logp = asyncio.run_coroutine_threadsafe(work, self._loop).result(60)
            known = zip(request.ids[1:], logp, strict=True)
            answer["prompt_logprobs"] = [None, *({i: {"logprob": p}} for i, p in known)]
        return answer

    def _answer(self, ids: list[int], logp: list[float], version: int) -> dict[str, Any]:
        content = [{"token_id": i, "logprob": p} for i, p in zip(ids, logp, strict=True)]
        label = "default" if version == _OWN else str(version)
        choice = {
            "token_ids": ids,
            "logprobs": {"content": content},
            "finish_reason": "stop",
            "weight_versions": [{"version": label, "start": 0, "end": len(ids)}],
        }
        return {"choices": [choice]}

    def pause(self, _: object) -> None:
        if not self._paused:
            self._engine.pause()
            self._paused = True

    def resume(self, _: object) -> None:
        if self._paused:
            self._paused = False
            self._engine.resume()

    def call(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["method"] == "reload_weights"
        self._loaded = {}
        for path in sorted(Path(body["kwargs"]["weights_path"]).glob("*.safetensors")):
            self._loaded |= load_file(path)
        return {"results": [None]}

    def stamp(self, body: dict[str, Any]) -> None:
        self._engine.update_weights(self._loaded.items(), int(body["new_version"]))


def serve(port: str, folder: str, stop: str) -> None:
    state = StandIn(folder, int(stop))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def answer(path: str, body: dict[str, Any]) -> tuple[int, object]:
        try:
            return 200, state.answers[path](body)
        except Exception as error:  # noqa: BLE001 - who asked gets it
            unknown = 404 if isinstance(error, KeyError) else 500
            status = 400 if isinstance(error, ValueError) else unknown
            return status, {"error": f"{type(error).__name__}: {error}"}

    json_server.make(answer, int(port)).serve_forever()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)
