"""The documents' tables of levels are measured: how many tasks are isolated, and which cheats pass where."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.integrations import rewards
from sandboxkit.integrations.rewards import HostCompare, Limits
from sandboxkit.integrations.rewards.doctor import kind_of, shared_because
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, fill, humaneval, read

DOCUMENT = Path(str(rewards.__file__)).resolve().with_name("CHEATS.md")
WRITE = os.environ.get("SANDBOXKIT_WRITE") == "1"
"""Whether to measure all that the document says, and to write it."""
EVERY = 4
"""Otherwise one cheat in so many is tried in shared tests."""


def block(name: str) -> tuple[str, str, str]:
    """Return the document before a block, the block, and what follows."""
    before, begin, rest = DOCUMENT.read_text().partition(f"<!-- {name}: measured -->\n")
    old, end, after = rest.partition(f"<!-- end of {name} -->\n")
    return before + begin, old, end + after


def written(name: str, rows: list[str]) -> str:
    """Return the block as the document has it; with SANDBOXKIT_WRITE=1, write `rows` to it first."""
    before, old, after = block(name)
    if WRITE:
        old = "".join(f"{row}\n" for row in rows)
        DOCUMENT.write_text(before + old + after)
    return old


# Any: rows of data sets.
def tasks() -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the data sets that are here whole, and tasks in the shapes of others."""
    yield "HumanEval", humaneval()
    lines = (DATA / "mbpp_500.jsonl").read_text().splitlines()
    yield "MBPP, 101 to 600", [json.loads(line) for line in lines]
    for name, rows in read(DATA / "published_shapes.toml").items():
        yield f"shape of {name}", rows


def test_the_document_has_the_share_of_isolated_tasks() -> None:
    rows = ["| tasks | number | isolated | shared, because |", "| --- | --- | --- | --- |"]
    for name, each in tasks():
        reasons = Counter(kind_of(shared_because(HostCompare(), task)) for task in each)
        isolated = reasons.pop("", 0)
        why = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
        rows.append(f"| {name} | {len(each)} | {isolated} | {why} |")
    old = written("share", rows)
    assert old.splitlines() == rows, "run this test with SANDBOXKIT_WRITE=1"


# Any: rows of data sets.
def cheats() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the class, source and task of each cheat on a task whose tests are isolated."""
    for name, item in read(DATA / "corpus" / "classes.toml").items():
        if not shared_because(HostCompare(), item["row"]):
            texts = {key: text for key, text in item["row"].items() if isinstance(text, str)}
            for code in fill(item.get("fails", {}), texts).values():
                yield name.partition(":")[0], code, item["row"]


@pytest.mark.timeout(300)
def test_the_document_has_how_many_cheats_of_each_class_pass_in_shared_tests() -> None:
    kinds = Counter(kind for kind, _, _ in cheats())
    tried = [
        (f"{kind} {number}", code, {**row, "stateful": True})
        for number, (kind, code, row) in enumerate(cheats())
    ][:: 1 if WRITE else EVERY]
    verdicts = grade_all("local", HostCompare(Limits(timeout=2, wall=6)), tried, in_turn=True)
    assert {each.trust for each in verdicts.values()} == {"shared"}
    passed = Counter(
        re.sub(r" \d+$", "", name) for name, each in verdicts.items() if each.score == 1
    )
    rows = ["| class | isolated | the same tasks, shared |", "| --- | --- | --- |"]
    rows += [f"| {kind} | 0 of {n} | {passed[kind]} of {n} |" for kind, n in kinds.items()]
    old = written("classes", rows)
    documented = {
        kind: (int(count), int(total))
        for kind, total, count in re.findall(r"\| ([a-z ]+) \| 0 of (\d+) \| (\d+) of", old)
    }
    assert {kind: total for kind, (_, total) in documented.items()} == kinds
    assert all(passed[kind] <= count for kind, (count, _) in documented.items())
    assert any(passed.values()), "tests beside a submission can be cheated"
