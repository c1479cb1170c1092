"""The console output of a run, and the files in its folder: metrics, rollouts and a plot."""

import dataclasses
import datetime
import hashlib
import itertools
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._training import plot, records, show
from sandboxkit.integrations._training.atomic_write import atomic_write
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.output import say

__all__ = ["Console"]

_UNUSUAL = (
    ("infra_failed_rate", "infra {:.0%}", 0.005),
    ("truncated", "cut off {:.0%}", 0.095),
    ("skipped", "not finite", 0.0),
)
"""A line also shows a metric, in this form, if it is above this number."""
_RECENT = 10
"""The number of last steps of which a line gives the mean time."""
_SAMPLE_LINES, _COLUMNS = 12, 76


class Console:
    """Writes metrics.jsonl and rollouts/ step by step, and prints a line for each step.

    When a run resumes at step `first`, rows of later steps are deleted. Raises ConfigurationError if
    the files cannot be written at the start. A later failure is only noted: metrics are kept in
    memory until a write succeeds; rollouts are lost.
    """

    def __init__(self, config: Config, first: int) -> None:
        self._run = Path(config.run.folder)
        self._begun = time.monotonic()
        self._config, self._wandb = config, None
        self._metrics = self._run / "metrics.jsonl"
        self._unwritten: list[Mapping[str, float]] = []
        self._best = -math.inf
        self._ends = deque([self._begun], maxlen=_RECENT + 1)
        try:
            with atomic_write(self._run / "config.json") as new:
                new.write_text(config.to_json())
            records.cut(self._run, first)
            rows = [row["reward"] for row in plot.rows(self._metrics) if "reward" in row]
            self._best = max((each for each in rows if each is not None), default=self._best)
        except OSError as error:
            raise ConfigurationError(
                f"run.folder={str(self._run)!r} cannot be written: {error}"
            ) from error
        place = f"goes on after step {first}" if first else f"{config.run.steps} steps"
        seed = f"seed {config.run.seed}"
        say(
            sys.stdout,
            f"{self._run}: {place}, {seed}, {config.objective.loss}, {config.engine.kind}",
        )

    def __enter__(self) -> Self:
        self._wandb = _wandb(self._config)
        return self

    def __exit__(self, *_: object) -> None:
        if self._wandb is not None:
            self._wandb.finish()

    def step(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step, and show the most important of them, in 80 columns."""
        self._record(metrics)
        step, steps, reward = int(metrics["step"]), self._config.run.steps, metrics["reward"]
        self._best = reward if reward > self._best else self._best  # it may be no number
        self._ends.append(time.monotonic())
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        left = datetime.timedelta(seconds=round(each * (steps - step)))
        best = f"best {self._best:.3f}" if math.isfinite(self._best) else ""
        speed = f"{metrics['tokens_per_second']:.0f} tok/s  {each:.1f} s/step  {left} left"
        unusual = [
            form.format(metrics[name])
            for name, form, usual in _UNUSUAL
            if metrics.get(name, 0.0) > usual
        ]
        parts = [f"step {step}/{steps}", f"reward {reward:.3f}", best, speed, *unusual]
        say(sys.stdout, "  ".join(filter(None, parts)))

    def rollouts(self, step: int, rows: Iterable[dict[str, Any]]) -> None:  # Any: JSON
        """Write the rollouts of a step, as `rollout.record` makes them. A failed write is only noted.

        Every `run.show_every` steps one of them is shown.
        """
        every, rows = self._config.run.show_every, iter(rows)
        if every and (step - 1) % every == 0 and (shown := next(rows, None)) is not None:
            self._show(step, shown)
            rows = itertools.chain([shown], rows)
        try:
            records.write(self._run, step, ({"step": step, **row} for row in rows))
        except OSError as error:
            self.note(f"the rollouts of step {step} cannot be written: {error}")

    def _show(self, step: int, row: dict[str, Any]) -> None:  # Any: JSON
        text = "\n".join(turn["text"] for turn in row["turns"]).strip()
        lines = [show.safe(line)[:_COLUMNS] for line in text.split("\n")[:_SAMPLE_LINES]]
        say(sys.stdout, f"a rollout of step {step}: {row['outcome']}, reward {row['reward']}")
        say(sys.stdout, "\n".join(f"  | {line}" for line in lines))

    def note(self, text: str) -> None:
        """Show a warning about a failure that does not end the run."""
        say(sys.stdout, f"warning: {text}")

    def held_out(self, step: int, rates: Mapping[str, float]) -> None:
        """Record and show the pass rates on the held-out rows, as `Sampling.evaluate` returns them."""
        self._record({"step": step, **rates})
        more = "".join(f"  {name} {rate:.3f}" for name, rate in list(rates.items())[1:])
        say(sys.stdout, f"step {step}  held-out pass rate {rates['held_out']:.3f}{more}")

    def has_held_out(self, step: int) -> bool:
        """Whether a pass over the held-out rows is recorded for a step."""
        rows = [*plot.rows(self._metrics), *self._unwritten]
        return any("held_out" in row and row["step"] == step for row in rows)

    def end(self, signalled: int) -> None:
        """Write what is still unwritten, and show the plot."""
        self._write()
        try:
            say(sys.stdout, plot.draw(self._run))
        except ConfigurationError as error:
            self.note(str(error))
        how = f"stopped by {signal.Signals(signalled).name}" if signalled else "done"
        say(sys.stdout, f"{how} after {time.monotonic() - self._begun:.0f} s; see {self._run}")

    def _record(self, metrics: Mapping[str, float]) -> None:
        self._unwritten.append(metrics)
        self._write()
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=int(metrics["step"]))

    def _write(self) -> None:
        try:
            records.append(self._run, self._unwritten)
        except OSError as error:
            waiting = f"{len(self._unwritten)} of its lines wait for room"
            self.note(f"{self._metrics} could not be written: {error}; {waiting}")
        else:
            self._unwritten.clear()


def _wandb(config: Config) -> Any:  # Any: wandb's run, where it is installed
    """Return a Weights & Biases run, resumed under the same id for the same folder; or None."""
    if not config.run.wandb:
        return None
    try:
        import wandb
    except ImportError as error:
        raise ConfigurationError(
            f"run.wandb={config.run.wandb!r} needs wandb: pip install wandb"
        ) from error
    folder = Path(config.run.folder).resolve()
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    try:
        return wandb.init(
            project=config.run.wandb,
            id=digest,
            name=folder.name,
            resume="allow",
            dir=folder,
            config=dataclasses.asdict(config),
        )
    except wandb.Error as error:
        raise ConfigurationError(
            f"run.wandb={config.run.wandb!r}: {error} (or set WANDB_MODE=offline)"
        ) from error
