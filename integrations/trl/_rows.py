"""Lookup of a data set's row by its prompt, since TRL passes only prompts to a `rollout_func`."""

import hashlib
from collections.abc import Mapping
from typing import Any

from sandboxkit import ConfigurationError


# Any: TRL's trainer, and rows of a user's data set.
class RowsByPrompt:
    """Finds rows in a trainer's data sets by their prompt. Keeps only a digest and the index of each row.

    Raises ConfigurationError for a streamed data set, and for different rows with the same prompt.
    """

    def __init__(self, trainer: Any) -> None:
        evaluated = trainer.eval_dataset
        others = evaluated.values() if isinstance(evaluated, Mapping) else [evaluated]
        self._places: dict[bytes, tuple[Any, int]] = {}
        for dataset in (trainer.train_dataset, *others):
            if dataset is not None:
                self._add(dataset)

    def __call__(self, prompt: Any) -> dict[str, Any]:
        """Return the row with this prompt. Raises ConfigurationError if there is none."""
        place = self._places.get(_key(prompt))
        if place is None:
            raise ConfigurationError(
                f"no row of the data sets has the prompt {str(prompt)[:80]}; give "
                "SandboxRollouts a function row= that finds it"
            )
        dataset, index = place
        return dict(dataset[index])

    def _add(self, dataset: Any) -> None:
        if not hasattr(dataset, "__getitem__"):
            raise ConfigurationError(
                "rows of a streamed data set cannot be looked up by their prompt; give "
                "SandboxRollouts a function row= that finds them"
            )
        for index, row in enumerate(dataset):
            known, at = self._places.setdefault(_key(row["prompt"]), (dataset, index))
            if dict(known[at]) != dict(row):
                raise ConfigurationError(
                    f"two rows differ and have the same prompt {str(row['prompt'])[:80]}; give "
                    "SandboxRollouts a function row=, or prompts that differ"
                )


def _key(prompt: Any) -> bytes:
    return hashlib.blake2b(repr(prompt).encode(errors="surrogatepass"), digest_size=16).digest()
