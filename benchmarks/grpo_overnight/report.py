"""The record of both legs as a page."""

import itertools
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.grpo_overnight import outcome
from benchmarks.grpo_overnight.outcome import Outcome
from benchmarks.grpo_overnight.plan import LEGS, Leg, Plan
from benchmarks.grpo_overnight.servers import COUNT
from sandboxkit import ConfigurationError

__all__ = ["page"]

_PARTS = 4
_LAST = 3
"""Passes over the held-out rows at the end, whose mean is compared."""


def page(folder: Path) -> str:
    """In Markdown. Raises ConfigurationError for a folder without a disturbed leg."""
    plan = Plan.load(folder)
    legs = {name: outcome.read(Leg(folder / name), folder / "train.jsonl") for name in LEGS}
    disturbed, undisturbed = (legs[name] for name in LEGS)
    if plan is None or disturbed is None:
        raise ConfigurationError(f"{str(folder)!r} has no run that was begun: leave out --report")
    both = [(name, leg) for name, leg in legs.items() if leg is not None]
    return "\n".join(
        [
            "# A long run with failures",
            "",
            *_what(plan),
            "",
            *_table(["", *(name for name, _ in both)], _ends(plan, dict(both))),
            "",
            "## What was injected",
            "",
            *_table(["", "count"], _injected(plan, disturbed)),
            "",
            "## The pass rate on rows that it does not train on",
            "",
            *_table(["step", *(name for name, _ in both)], _curves(disturbed, undisturbed)),
            "",
            "## Over time",
            "",
            f"Medians over each {_ordinal(_PARTS)} of the disturbed run.",
            "",
            *_table(["", *(f"{n + 1} of {_PARTS}" for n in range(_PARTS))], _over_time(disturbed)),
            "",
            "## Events",
            "",
            *_table(
                ["trained for", "after step", ""],
                ([_hours(e["seconds"]), e["step"], e["what"]] for e in disturbed.progress.events),
            ),
            "",
        ]
    )


def _what(plan: Plan) -> list[str]:
    server = "vLLM servers" if plan.vllm else "servers that stand in for vLLM (transformers)"
    how = f"--hours {plan.hours:g}" if plan.hours else f"--steps {plan.steps}"
    further = [f"    python -m benchmarks.grpo_overnight --folder F --further {plan.further}"]
    longer = (
        f" After the {plan.steps} steps of both the disturbed run went on for {plan.further} more, as a "
        "user's does whose `run.steps` is raised: its learning rate was then that of so long a run."
    )
    return [
        "`python -m sandboxkit.integrations.grpo` on the model and task of `make grpo-demo`, with "
        f"{COUNT} {server} and local sandboxes, on {os.cpu_count()} cores. In the disturbed run "
        f"{plan.rate:.0%} of the sandboxes fail to start or are dead when they come, and under as "
        "many of the runs in them the sandbox is killed; a server is killed every "
        f"{_hours(plan.kill_every)} and started again {_hours(plan.back_after)} later; and the "
        f"trainer is sent SIGTERM {plan.signals} times, at equal distances in steps, and started "
        f"again with the same command.{longer if plan.further else ''} Written by:",
        "",
        f"    python -m benchmarks.grpo_overnight --folder F {how} --seed {plan.seed}",
        f"    python -m benchmarks.grpo_overnight --folder F {how} --seed {plan.seed} --undisturbed",
        *(further if plan.further else []),
        "    python -m benchmarks.grpo_overnight --folder F --report",
    ]


def _ends(plan: Plan, both: dict[str, Outcome]) -> Iterable[list[object]]:
    legs = list(both.values())

    def row(name: str, value: Callable[[Outcome], object]) -> list[object]:
        return [name, *(value(leg) for leg in legs)]

    yield [
        "steps",
        *(f"{len(leg.steps)} of {plan.last(Leg(Path(name)))}" for name, leg in both.items()),
    ]
    yield row("time in which it trained", lambda leg: _hours(leg.progress.seconds))
    yield row("in so many pieces", lambda leg: leg.progress.pieces)
    if len(legs) == len(LEGS):
        one, two = (leg.made for leg in legs)
        shares = (outcome.beside(one, two), outcome.beside(two, one))
        yield ["of its steps, beside the other run", *(f"{share:.0%}" for share in shares)]
    until = {f"at step {plan.steps}": plan.steps} if plan.further else {}
    for where, most in {**until, "at the end": plan.steps + plan.further}.items():
        yield row(f"held-out pass rate {where}", partial(_held_out, most, 1))
        yield row(f"mean of the last {_LAST} such", partial(_held_out, most, _LAST))
    yield row("went on after step", lambda leg: ", ".join(map(str, leg.resumed)) or "-")
    yield row("servers lost / taken back", lambda leg: f"{leg.lost} / {leg.back}")
    yield row("rollouts", lambda leg: sum(leg.outcomes.values()))
    for name in sorted({name for leg in legs for name, count in leg.outcomes.items() if count}):
        yield row(f"of them {name}", partial(_share, name))
    yield row("rewards checked / wrong", lambda leg: f"{leg.known} / {leg.wrong}")
    yield row(
        "optimizer steps skipped", lambda leg: sum(bool(row.get("skipped")) for row in leg.steps)
    )
    yield row("left behind at its ends", lambda leg: len(leg.progress.left))
    yield row("complaints", lambda leg: "; ".join(leg.complaints) or "none")


def _injected(plan: Plan, leg: Outcome) -> Iterable[list[object]]:
    for kind, count in leg.injected.items():
        yield [f"sandboxes {kind}" if kind not in ("runs", "lost") else _RUNS[kind], count]
    yield ["servers killed", leg.progress.kills]
    yield ["SIGTERM to the trainer", leg.progress.signals]


_RUNS = {"runs": "runs in sandboxes", "lost": "of which the sandbox was killed"}


def _curves(disturbed: Outcome, undisturbed: Outcome | None) -> Iterable[list[object]]:
    for step in sorted(disturbed.held_out.keys() | (undisturbed.held_out if undisturbed else {})):
        rates = [leg.held_out.get(step) for leg in (disturbed, undisturbed) if leg is not None]
        yield [step, *("-" if rate is None else f"{rate:.3f}" for rate in rates)]


def _over_time(leg: Outcome) -> Iterable[list[object]]:
    for title, rows, name, form in (
        ("the trainer's memory, MiB", leg.looks, "rss_mb", "{:.0f}"),
        ("its open descriptors", leg.looks, "descriptors", "{:.0f}"),
        ("its threads", leg.looks, "threads", "{:.0f}"),
        ("processes that it has", leg.looks, "children", "{:.0f}"),
        ("disk, MiB", leg.looks, "disk_mb", "{:.1f}"),
        ("seconds a step", leg.steps, "step_seconds", "{:.2f}"),
        ("of them waiting for rollouts", leg.steps, "wait_seconds", "{:.2f}"),
        ("rollouts without a verdict", leg.steps, "infra_failed_rate", "{:.1%}"),
        ("reward", leg.steps, "reward", "{:.3f}"),
    ):
        yield [title, *(_median(part, name, form) for part in _parts(rows))]


def _parts(rows: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    ends = [len(rows) * n // _PARTS for n in range(_PARTS + 1)]
    return [rows[a:b] for a, b in itertools.pairwise(ends)]


def _median(rows: Sequence[dict[str, Any]], name: str, form: str) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    return form.format(statistics.median(values)) if values else "-"


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def _share(name: str, leg: Outcome) -> str:
    count, every = leg.outcomes[name], sum(leg.outcomes.values())
    return f"{count} ({count / every:.1%})" if every else "0"


def _held_out(most: int, count: int, leg: Outcome) -> str:
    rates = [rate for step, rate in leg.held_out.items() if step <= most][-count:]
    return f"{statistics.mean(rates):.3f}" if rates else "-"


def _ordinal(number: int) -> str:
    return {2: "half", 3: "third", 4: "quarter"}.get(number, f"{number}th")


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, _ = divmod(round(seconds), 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
