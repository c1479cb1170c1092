"""A problem in the shape of a row of HumanEval, with solutions that are wrong."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """The fields are named as in the data set, but for `broken`: bodies that must fail."""

    entry_point: str
    prompt: str
    canonical_solution: str
    test: str
    broken: tuple[str, ...]

    # Any: a row of a data set.
    @property
    def row(self) -> dict[str, Any]:
        """The row as a data set has it."""
        return {
            "in_place": "in place" in self.prompt,
            "task_id": f"Shaped/{self.entry_point}",
            "prompt": self.prompt,
            "canonical_solution": self.canonical_solution,
            "entry_point": self.entry_point,
            "test": f'\nMETADATA = {{"author": "sandboxkit", "dataset": "test"}}\n\n{self.test}',
        }

    def program(self, body: str) -> str:
        """The whole submission: the prompt and what a model completes it with."""
        return f"{self.prompt}{body}\n"
