"""Transfer of only LoRA adapters to vLLM servers, as files in a shared folder.

The servers keep the base model's weights and sample with the adapter `name`. Name, number and files
stay the same, so requests in flight continue with the new version: the files are replaced, and the
servers drop their cached copy. (vLLM 0.32 rereads an adapter loaded with `load_inplace` for every
token.)
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from safetensors.torch import save_file

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._training.atomic_write import atomic_write
from sandboxkit.integrations.grpo.engines.files import OwnFolder
from sandboxkit.integrations.grpo.engines.replicas import Refused, Replicas
from sandboxkit.integrations.grpo.engines.transfer import Bucket, Each
from sandboxkit.integrations.grpo.engines.vllm_calls import ADAPTED

__all__ = ["Adapter"]

_LOAD = "/v1/load_lora_adapter"
_NOWHERE = "/nonexistent"


class Adapter:
    """A Transfer of low-rank adapters of `rank`, scaled by alpha / rank, in peft's format."""

    def __init__(self, replicas: Replicas, files: OwnFolder, rank: int, alpha: float) -> None:
        self._replicas, self._files, self._rank, self._alpha = replicas, files, rank, alpha
        self.name = f"adapter-{secrets.token_hex(4)}"
        """The adapter's name on the servers, which know it after the first `send`."""

    def join(self, url: str) -> None:
        """See Transfer. Raises ConfigurationError if the server does not accept adapters."""
        try:
            self._load(url, _NOWHERE)
        except Refused as error:
            if "No adapter found" not in str(error):
                raise self._server_error(url, error) from error

    def send(self, each: Each, made: Iterable[Bucket], version: int) -> None:
        """See Transfer. Raises EngineError if the files cannot be written."""
        tensors = {name: value for bucket in made for name, value in bucket.items()}
        self._files.write(lambda: self._write(tensors))
        stamp = {"new_version": f"{ADAPTED}{version}"}
        each(self._take)
        each(lambda url: self._replicas.post(url, "/update_weight_version", stamp).result())

    def close(self) -> None:
        """See Transfer. The servers keep the last adapter until another replaces it."""
        self._files.close()

    def _write(self, tensors: Bucket) -> None:
        layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
        config = {
            "peft_type": "LORA",
            "r": self._rank,
            "lora_alpha": self._alpha,
            "target_modules": sorted(layers),
        }
        with atomic_write(self._files.path / "adapter_config.json") as new:
            new.write_text(json.dumps(config))
        with atomic_write(self._files.path / "adapter_model.safetensors") as new:
            save_file({name: value.cpu().clone() for name, value in tensors.items()}, new)

    def _take(self, url: str) -> None:
        """Have a server load the files: now if the adapter is new there, else before it samples again."""
        try:
            self._load(url, str(self._files.path))
        except Refused as error:
            if "already been loaded" not in str(error):
                raise self._server_error(url, error) from error
            # This also unloads other clients' adapters; they are reloaded on their next request.
            for number in set(re.findall(r"\d+", str(self._call(url, "list_loras", {})))):
                self._call(url, "remove_lora", {"lora_id": int(number)})

    def _load(self, url: str, path: str) -> None:
        body = {"lora_name": self.name, "lora_path": path}
        self._replicas.post(url, _LOAD, body).result()

    # Any: arguments and results of a worker.
    def _call(self, url: str, method: str, given: Mapping[str, Any]) -> Any:
        body = {"method": method, "kwargs": given}
        return self._replicas.post(url, "/collective_rpc", body).result()["results"]

    def _server_error(self, url: str, error: Refused) -> Refused | ConfigurationError:
        """Return the error to raise: ConfigurationError if the server was started wrongly, else `error`."""
        if error.status >= 500 and "lora" not in str(error).lower().replace(_LOAD, ""):
            return error
        return ConfigurationError(
            f"vLLM at {url} takes no adapter ({error}): start it with --enable-lora --max-lora-rank "
            f"{self._rank} or more, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and engine.folder="
            f"{str(self._files.path.parent)!r} in sight; or give another engine.transfer, which sends "
            "merged weights"
        )
