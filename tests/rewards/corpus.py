"""Corpora in TOML files: tasks, each with a submission that must pass and some that must fail."""

import ast
import gzip
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit.integrations.rewards import Limits

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, slots=True)
class Item:
    """A table of a file in data/corpus, whose name is the item's.

    The table `all` of a file holds what all of its items have. The table `shared` holds texts, for
    which `@NAME@` stands everywhere in the file; in a submission `@prompt@` and the like stand for
    a text of the item's own row.
    """

    name: str
    # Any: a row of a data set.
    row: Mapping[str, Any]
    """The task. Cases for which TOML has no type are the text of a Python literal."""
    passes: str | Sequence[str] = ()
    """Submissions that get a reward of 1."""
    fails: Mapping[str, str] = field(default_factory=dict)
    """Submissions that get a reward of 0, by name."""
    shared: str = ""
    """A part of the reason why the tests run beside the submission; "" if they are isolated."""
    limits: Limits = field(default_factory=lambda: Limits(timeout=10, wall=60, memory_mb=256))

    @property
    def honest(self) -> Sequence[str]:
        return [self.passes] if isinstance(self.passes, str) else self.passes


# Any: values of TOML.
def read(path: Path) -> dict[str, Any]:
    """Read a file, and fill in its `shared` texts; those with a number are repeated."""
    found = tomllib.loads(path.read_text())
    texts = {
        name: text.removesuffix("\n") if isinstance(text, str) else text[0] * text[1]
        for name, text in found.pop("shared", {}).items()
    }
    return {name: fill(value, texts) for name, value in found.items()}


def fill(value: Any, texts: Mapping[str, str]) -> Any:
    """Replace each `@NAME@` in all texts of a value."""
    if isinstance(value, dict):
        return {name: fill(each, texts) for name, each in value.items()}
    if isinstance(value, list):
        return [fill(each, texts) for each in value]
    if isinstance(value, str):
        for name, text in texts.items():
            value = value.replace(f"@{name}@", text)
    return value


def _item(name: str, row: dict[str, Any], limits: Any = None, **rest: Any) -> Item:
    if isinstance(row.get("cases"), str):
        row["cases"] = ast.literal_eval(row["cases"])
    if limits is not None:
        rest["limits"] = Limits(**limits)
    texts = {column: value for column, value in row.items() if isinstance(value, str)}
    return Item(name, row, **fill(rest, texts))


def items(path: Path) -> tuple[Item, ...]:
    found = read(path)
    common = found.pop("all", {})
    rows = {name: {**common.get("row", {}), **table["row"]} for name, table in found.items()}
    return tuple(
        _item(name, **{**common, **table, "row": rows[name]}) for name, table in found.items()
    )


# Any: rows of data sets.
def humaneval() -> list[Mapping[str, Any]]:
    """Return the rows of HumanEval."""
    with gzip.open(DATA / "humaneval.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


CORPORA: dict[str, tuple[Item, ...]] = {
    path.stem: items(path) for path in sorted(DATA.glob("corpus/*.toml"))
}
