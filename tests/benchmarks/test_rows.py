"""Each of the report's rows runs on our side; its document and the table of hosted providers say what the code says."""

import tomllib
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.patches import Rectangle

from benchmarks.hosted import Measure, Side, Traffic
from benchmarks.hosted_table import lines
from benchmarks.report import prices
from benchmarks.report.isolation import ISOLATION
from benchmarks.report.plot import Bar, Panel, figure, svg
from benchmarks.report.rounds import Entry
from benchmarks.report.rows import rows
from benchmarks.sides import bare, ours
from benchmarks.sides.serve import turn
from tests.docker_here import require_docker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
SMALL = {"sandboxes": 2, "pool": 2, "megabytes": 64}


def small() -> dict[str, Entry]:
    """The entries that need no peer; of those that differ in numbers alone, one."""
    found: dict[object, tuple[str, Entry]] = {}
    names = ("provider", "isolation", "argv", "code", "reset")
    for key, entry in ((row.key, entry) for row in rows() for entry in row.entries):
        does = (entry.module, entry.measure, *(str(entry.arguments.get(name)) for name in names))
        if entry.peer is None:
            found.setdefault(does, (f"{key}, {entry.label}", entry))
    return dict(found.values())


@pytest.mark.parametrize("entry", [pytest.param(e, id=n) for n, e in small().items()])
@pytest.mark.anyio
async def test_a_row_runs_and_its_outputs_are_right(entry: Entry) -> None:
    if entry.arguments.get("provider") == "docker" or entry.measure == "floor_in_container":
        require_docker()
    arguments: dict[str, Any] = {**entry.arguments}
    arguments |= {name: SMALL[name] for name in SMALL.keys() & arguments}
    measure: Any = None  # Any: a function of either module
    if entry.module == "ours":
        measure = getattr(ours, entry.measure, None)
    if measure is None:
        measure = getattr(bare, entry.measure, bare.command)
    async with AsyncExitStack() as stack:
        context = measure(**arguments)
        if isinstance(context, AbstractContextManager):
            work = stack.enter_context(context)
        else:
            work = await stack.enter_async_context(context)
        assert (await turn(work, 2, 2))["seconds"] > 0


def test_keys_and_labels_are_unique() -> None:
    keys = [row.key for row in rows()]
    assert len(set(keys)) == len(keys)
    for row in rows():
        labels = [entry.label for entry in row.entries]
        assert len(set(labels)) == len(labels)
        for target in row.targets:
            assert {target.entry, target.other} <= set(labels)


def test_the_document_has_the_tables_and_sentences_of_the_code() -> None:
    text = PAGE.read_text()
    assert ISOLATION in text
    for row in (each for each in rows() if f"\n## {each.title}\n" in text):
        assert f"\n## {row.title}\n\n{row.means}\n\n`{row.key}`: " in text
        assert [
            each.says for each in row.targets if f"\n| {each.says} | {each.bound} " not in text
        ] == []
    assert prices.table(prices.Assumptions()) in text


def test_kept_sandboxes_cost_less_and_are_as_many_as_run_at_a_time() -> None:
    given = prices.Assumptions(jobs=1000, sandboxes=10, start=2, round_trip=0.5, python=0, forked=0)
    vendor = prices.Vendor("x", 0.001, 0.002, 4, "")
    one, kept = prices.fresh(vendor, given), prices.reused(vendor, given)
    assert (one.created, one.seconds) == (1000, 250.0)
    assert (kept.created, kept.seconds) == (10, 104.5)
    assert one.dollars == pytest.approx(7.5)
    assert kept.dollars == pytest.approx(3.135)


def test_longer_bars_are_higher_rates() -> None:
    panels = [Panel("a & b", [Bar("slow", 2, False), Bar("fast", 200, True)])]
    bars = [each for each in figure(panels).axes[0].patches if isinstance(each, Rectangle)]
    assert [bar.get_width() for bar in bars] == [2, 200]
    texts = {each.text for each in ElementTree.fromstring(svg(panels)).iter() if each.text}
    assert {"a & b", "slow", "fast"} <= texts
    assert svg(panels) == svg(panels)


LINES = tomllib.loads((Path(__file__).parent / "hosted_table.toml").read_text())["line"]
ROUGH = Measure("first", "create to first result", 1, ratio=1.5, baked=1.2)


def side(name: str, seconds: float | None, requests: int) -> Side:
    """A side that was measured once; None has failed."""
    meter: Any = None  # no process runs
    made = Side(name, [], Path(), meter)
    if seconds is None:
        made.failures["first"] = "it ended | badly"
    else:
        made.seconds["first"] = [seconds]
        made.traffic["first"] = [Traffic(requests, 1500, 800)]
    return made


@pytest.mark.parametrize("case", LINES, ids=lambda case: case["name"])
def test_a_line_has_times_a_ratio_its_target_and_traffic_or_a_reason(case: dict[str, Any]) -> None:
    baked = case.get("baked", False)
    sides = [side("ours", case.get("ours"), 3), side("SDK", 0.1, 2)]
    (found,) = lines("e2b", 0.05, sides, [ROUGH], baked=baked)
    assert case["has"] in found
    assert ("first result, baked |" in found) == baked
