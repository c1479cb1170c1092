"""Weights as files in a folder that vLLM's processes see."""

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.engines import EngineError, Weights

__all__ = ["WeightFiles"]

_FILE_BYTES = 256 * 2**20
"""Size of a file; up to this plus one tensor is held in memory besides the model."""


class WeightFiles:
    """A folder of the run in `parent`, such as one in memory; what a killed run left there is deleted.

    `run` is the run's folder, which only one process uses at a time. Raises ConfigurationError if the
    folder cannot be made.
    """

    def __init__(self, parent: str, run: str, patience: float) -> None:
        digest = hashlib.sha256(str(Path(run).resolve()).encode()).hexdigest()[:16]
        self._folder, self._patience = Path(parent).resolve() / f"sandboxkit-{digest}", patience
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            self._folder.chmod(0o755)  # a server may be another user's
        except OSError as error:
            raise ConfigurationError(
                f"engine.folder={parent!r} cannot be written: {error}"
            ) from error

    @contextlib.contextmanager
    def written(self, weights: Weights, dtype: torch.dtype) -> Iterator[str]:
        """Yield the path of the weights in safetensors files, which are deleted when the context ends.

        A write that fails is retried. Raises EngineError if it still fails after `patience` seconds.
        """
        try:
            for number, tensors in enumerate(_files(weights, dtype)):
                path = self._folder / f"model-{number:05}.safetensors"
                self._retried(partial(save_file, tensors, path))
            yield str(self._folder)
        finally:
            for path in self._folder.iterdir():
                path.unlink()

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _retried(self, save: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._patience
        for wait in pauses():
            try:
                return save()
            except (OSError, SafetensorError) as error:
                if time.monotonic() + wait > deadline:
                    raise EngineError(
                        f"for engine.patience={self._patience:g} s no weights could be written into "
                        f"engine.folder={str(self._folder.parent)!r} ({error}): make room, and start "
                        "the run again, which goes on from its checkpoint"
                    ) from error
            time.sleep(wait)


def _files(weights: Weights, dtype: torch.dtype) -> Iterator[dict[str, torch.Tensor]]:
    """Group the tensors, in order, into files of at least `_FILE_BYTES`."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in weights:
        # A copy: safetensors refuses tensors that share memory, as tied weights do.
        tensors[name] = value.detach().to("cpu", dtype, copy=True).contiguous()
        if sum(each.nbytes for each in tensors.values()) >= _FILE_BYTES:
            yield tensors
            tensors = {}
    if tensors:
        yield tensors
