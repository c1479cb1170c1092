"""Finds keys that can be added to a task so that its tests may accept its reference."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sandboxkit.integrations.rewards.doctor._names import CheatNames, classes_of

__all__ = ["remedies"]

# Any: a row of a user's data set, and its values.
Remedy = tuple[str, dict[str, Any]]
"""The key as its author would write it, and the task with that key."""


def remedies(task: Mapping[str, Any], names: CheatNames, reference: str) -> Iterator[Remedy]:
    """Yield the keys that the task lacks, beginning with those that weaken grading least."""
    if not any(task.get(name) for name in ("test", "tests", "test_list")):
        return
    defined = list(classes_of(reference))
    tried: dict[str, Any] = {"names": list(names.own)}
    if defined:
        tried |= {"classes": defined, "operators": defined}
    tried |= {"in_place": True, "varies": True, "trust": "shared"}
    for key, value in tried.items():
        if value and not task.get(key):
            yield f'"{key}": {json.dumps(value)}', {**task, key: value}
