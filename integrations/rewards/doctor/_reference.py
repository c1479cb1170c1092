"""Finds the reference solution in a row of a data set."""

from collections.abc import Mapping
from typing import Any

REFERENCES = ("reference", "canonical_solution", "code")
"""The columns that are searched, in this order: our own, HumanEval's and MBPP's."""


# Any: a task is a row of a user's data set.
def reference_of(task: Mapping[str, Any], key: str | None = None) -> str | None:
    """Return a task's reference solution as a whole program, or None if it has none.

    `key` is its column; None searches `REFERENCES`. A partial `canonical_solution` is appended to the
    task's `prefix` or `prompt`.
    """
    for name in (key,) if key else REFERENCES:
        text = task.get(name)
        if not isinstance(text, str) or not text.strip():
            continue
        if name != "canonical_solution":
            return text
        if _defines(text, task.get("entry_point")):
            return text
        for begin in (task.get("prefix"), task.get("prompt")):
            if isinstance(begin, str) and begin:
                return f"{begin}{text}"
    return None


def _defines(text: str, name: object) -> bool:
    """Whether a solution defines the function `name` itself, and so does not continue the prompt."""
    return f"\ndef {name}(" in f"\n{text}"
