"""Adapters to vLLM servers, alone: files in a folder that all of them see, loaded beside their model.

The servers keep the model's own weights, and sample with the adapter `name` over them. It has the same
name, number and files throughout, so that requests in flight go on with another version: the files
are replaced, and the servers forget what they have read of them. (An adapter that vLLM 0.32 has
loaded with `load_inplace` is read again for every token.)
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from safetensors.torch import save_file

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.engines.files import OwnFolder
from sandboxkit.integrations.grpo.engines.replicas import Refused, Replicas
from sandboxkit.integrations.grpo.engines.transfer import Bucket, Each
from sandboxkit.integrations.grpo.engines.vllm_calls import ADAPTED
from sandboxkit.integrations.grpo.whole import whole

__all__ = ["Adapter"]

_LOAD = "/v1/load_lora_adapter"
_NOWHERE = "/nonexistent"


class Adapter:
    """A Transfer of low-rank adapters of `rank`, scaled by alpha / rank, in peft's format."""

    def __init__(self, replicas: Replicas, files: OwnFolder, rank: int, alpha: float) -> None:
        self._replicas, self._files, self._rank, self._alpha = replicas, files, rank, alpha
        self.name = f"adapter-{secrets.token_hex(4)}"
        """What the servers call it; it is there once something was sent."""

    def join(self, url: str) -> None:
        """See Transfer. Raises ConfigurationError for a server that takes no adapters."""
        try:
            self._load(url, _NOWHERE)
        except Refused as error:
            if "No adapter found" not in str(error):
                raise self._said(url, error) from error

    def send(self, each: Each, made: Iterable[Bucket], version: int) -> None:
        """See Transfer. Raises EngineError where there is no room for it."""
        tensors = {name: value for bucket in made for name, value in bucket.items()}
        self._files.write(lambda: self._write(tensors))
        stamp = {"new_version": f"{ADAPTED}{version}"}
        each(self._take)
        each(lambda url: self._replicas.post(url, "/update_weight_version", stamp).result())

    def close(self) -> None:
        """See Transfer. The servers keep the last adapter until another takes its place."""
        self._files.close()

    def _write(self, tensors: Bucket) -> None:
        layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
        config = {
            "peft_type": "LORA",
            "r": self._rank,
            "lora_alpha": self._alpha,
            "target_modules": sorted(layers),
        }
        with whole(self._files.path / "adapter_config.json") as new:
            new.write_text(json.dumps(config))
        with whole(self._files.path / "adapter_model.safetensors") as new:
            save_file({name: value.cpu().clone() for name, value in tensors.items()}, new)

    def _take(self, url: str) -> None:
        """Have a server read what was written: at once if it is new to it, or else when it samples."""
        try:
            self._load(url, str(self._files.path))
        except Refused as error:
            if "already been loaded" not in str(error):
                raise self._said(url, error) from error
            # What others have loaded is read again, too, when it is asked for.
            for number in set(re.findall(r"\d+", str(self._call(url, "list_loras", {})))):
                self._call(url, "remove_lora", {"lora_id": int(number)})

    def _load(self, url: str, path: str) -> None:
        body = {"lora_name": self.name, "lora_path": path}
        self._replicas.post(url, _LOAD, body).result()

    # Any: what a worker takes and answers.
    def _call(self, url: str, method: str, given: Mapping[str, Any]) -> Any:
        body = {"method": method, "kwargs": given}
        return self._replicas.post(url, "/collective_rpc", body).result()["results"]

    def _said(self, url: str, error: Refused) -> Refused | ConfigurationError:
        """What to raise: a server that fails otherwise than for how it was started is a lost one."""
        if error.status >= 500 and "lora" not in str(error).lower().replace(_LOAD, ""):
            return error
        return ConfigurationError(
            f"vLLM at {url} takes no adapter ({error}): start it with --enable-lora --max-lora-rank "
            f"{self._rank} or more, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and engine.folder="
            f"{str(self._files.path.parent)!r} in sight; or give another engine.transfer, which sends "
            "merged weights"
        )
