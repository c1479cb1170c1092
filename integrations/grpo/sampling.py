"""The sampling side of a run, on rank 0: engine, sandboxes and buffer, driven from the trainer."""

import asyncio
import concurrent.futures
import math
import signal
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self, TypeVar

from transformers import PreTrainedTokenizerBase

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.grpo.buffer import Batch, Buffer
from sandboxkit.integrations.grpo.clock import Part
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.data import Row, load_swe_tasks, read_rows, row_of
from sandboxkit.integrations.grpo.engines import Engine, Weights
from sandboxkit.integrations.grpo.outage import Outage
from sandboxkit.integrations.grpo.record import record
from sandboxkit.integrations.grpo.rollout import Group, Rollout, Rollouts

__all__ = ["Sampling", "Stop", "Stopped"]

T = TypeVar("T")

_LOOK_EVERY = 0.1
"""Seconds between looks at whether to stop, while waiting."""
_AT_ONCE = 3.0


class Stopped(Exception):
    """A signal of `Stop` came: finish in order."""


@dataclass(slots=True)
class Stop:
    """Notes SIGTERM, SIGINT and SIGHUP while its context lasts; a second one is the usual end.

    SIGHUP, of a terminal that was closed, only where it is not ignored already, as by nohup. One
    that comes at once is the same again: a terminal, or a scheduler, sends it to every process, and
    torchrun to its own.
    """

    signal: int = 0
    _noted: float = 0.0
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal() gave back

    def check(self) -> None:
        """Raises Stopped once one was noted."""
        if self.signal:
            raise Stopped

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self.signal:
            self.signal, self._noted = number, now
        elif now - self._noted > _AT_ONCE:
            self.__exit__()
            signal.raise_signal(number)


class Sampling:
    """Rollouts, ahead of training or in step with it, and passes over the held-out rows.

    Raises Stopped out of every wait once `stop` has noted a signal.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: set[int],
        engine: Engine,
        session: Session,
        stop: Stop,
        position: int,
    ) -> None:
        self._config, self._stop, self._engine = config, stop, engine
        tasks, held_out = load_swe_tasks(config.data.tasks), config.data.held_out
        self._train = read_rows(config.data.train, tokenizer, config, tasks)
        self._held_out = read_rows(held_out, tokenizer, config, tasks) if held_out else []
        self._rollouts = Rollouts(config, tokenizer, stop_ids, engine, session, tasks)
        grading = config.grading
        self._outage = Outage.of(session, grading.max_infra_failed_rate, grading.patience)
        self._buffer = Buffer(self._make, config, self._outage, position)

    @property
    def position(self) -> int:
        """Of the next prompt in the stream."""
        return self._buffer.position

    def check(self) -> None:
        """Grade nothing for the first row: sandboxes and grader work, or ConfigurationError."""
        verdict = self._wait(self._rollouts.check(self._train[0]), "grading the first row")
        if verdict.reward is None:
            raise ConfigurationError(f"the first row cannot be graded: {verdict.detail}")

    def take(self, version: int) -> Batch:
        """The next step's batch. Blocks; raises TimeoutError after run.timeout seconds, and
        ProviderUnavailableError after an outage of grading.patience seconds."""
        last = self._config.run.steps - 1
        return self._wait(self._buffer.take(version, last), f"the rollouts of step {version + 1}")

    def evaluate(self) -> float:
        """The share of held-out rows for which one sample has the full reward; NaN without rows.

        Raises ProviderUnavailableError as `take` does.
        """

        async def run() -> list[Rollout]:
            made = dict[int, Rollout]()
            while True:
                rows = [row for row in self._held_out if row.number not in made]
                async with asyncio.TaskGroup() as running:
                    tasks = [
                        running.create_task(self._rollouts.one(row, f"held out {row.number}"))
                        for row in rows
                    ]
                made |= {row.number: task.result() for row, task in zip(rows, tasks, strict=True)}
                if not await self._outage.waited(made.values(), "held-out rows"):
                    return list(made.values())
                made = {n: each for n, each in made.items() if each.verdict.reward is not None}

        rollouts = self._wait(run(), "the held-out rows")
        known = [r.verdict.reward for r in rollouts if r.verdict.reward is not None]
        return sum(reward == 1 for reward in known) / len(known) if known else math.nan

    def update(self, weights: Weights, version: int) -> None:
        """Give the engine other weights, between two tokens of what is in flight."""
        self._engine.pause()
        try:
            self._engine.update_weights(weights, version)
        finally:
            self._engine.resume()

    def finished(self) -> Iterator[dict[str, Any]]:  # Any: JSON, as record.py says
        """The rollouts that ended for the last `take`, also where that raised."""
        for group in tuple(self._buffer.finished):
            for member, rollout in enumerate(group.rollouts):
                yield record(group.number, member, rollout, self._rollouts.text)

    def spent(self) -> dict[Part, float]:
        """Seconds since the beginning in which rollouts were under way, as Clock has them."""
        return self._rollouts.clock.spent()

    def close(self) -> None:
        """Give up all rollouts and close the engine; the session is the caller's."""

        async def give_up() -> None:
            await self._buffer.aclose()
            self._rollouts.close()

        Operation(give_up()).result()
        self._engine.close()

    async def _make(self, number: int) -> Group:
        row: Row = row_of(self._train, number, self._config.run.seed)
        return await self._rollouts.group(row, number)

    # Any: what a coroutine is sent and yields, which nobody here sees.
    def _wait(self, work: Coroutine[Any, Any, T], what: str) -> T:
        running = Operation(work)
        deadline = time.monotonic() + self._config.run.timeout
        try:
            while not running.done():
                concurrent.futures.wait([running], timeout=_LOOK_EVERY)
                self._stop.check()
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{what} took longer than run.timeout={self._config.run.timeout:g} s"
                    )
            return running.result()
        finally:
            running.cancel()
