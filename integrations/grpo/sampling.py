"""The sampling side of a run on rank 0: engine, sandboxes and buffer, as called by the trainer."""

import asyncio
import concurrent.futures
import hashlib
import json
import math
import signal
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self, TypeVar

from transformers import PreTrainedTokenizerBase

from sandboxkit import ConfigurationError, Operation, ProviderUnavailableError, Session
from sandboxkit.integrations._outages import require_working
from sandboxkit.integrations._training.clock import Part
from sandboxkit.integrations._training.curves import pass_at_k
from sandboxkit.integrations.grpo.buffer import Batch, Buffer
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.data import chosen_rows, load_swe_tasks, read_rows, row_of
from sandboxkit.integrations.grpo.engines import Completion, Engine, SampleRequest, Weights
from sandboxkit.integrations.grpo.errors import Stopped
from sandboxkit.integrations.grpo.hand_over import fixed_tokens
from sandboxkit.integrations.grpo.outage import Outage
from sandboxkit.integrations.grpo.rollout import Group, Rollout, RolloutRunner, record
from sandboxkit.integrations.grpo.training import TrainingSample
from sandboxkit.integrations.rewards.doctor import check_beforehand, line_about

__all__ = ["Sampling", "Stop"]

T = TypeVar("T")

_LOOK_EVERY = 0.1
"""Interval in seconds at which a wait checks for a signal."""
_LOOKS = 3
"""Attempts to grade the first row before a failure is a ConfigurationError."""
_AT_ONCE = 3.0
_PROBES, _PROBE_TOKENS, _FIXED_TOKENS = 4, 16, 64


@dataclass(slots=True)
class Stop:
    """Records SIGTERM, SIGINT and SIGHUP in its context; a second signal has its default effect.

    SIGHUP is left alone if it is already ignored, as by nohup. A second signal right after the first
    counts as the same one: a terminal or scheduler signals every process, and torchrun forwards it.
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
        """Raise Stopped if a signal was recorded."""
        if self.signal:
            raise Stopped

    # Any: the send and yield types of a coroutine, not used here.
    def wait(self, work: Coroutine[Any, Any, T], limit: float, what: str) -> T:
        """Return what `work` returns. Raises Stopped after a signal, TimeoutError after `limit` seconds."""
        running = Operation(work)
        deadline = time.monotonic() + limit
        try:
            while not running.done():
                concurrent.futures.wait([running], timeout=_LOOK_EVERY)
                self.check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{what} took longer than run.timeout={limit:g} s")
            return running.result()
        finally:
            running.cancel()

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self.signal:
            self.signal, self._noted = number, now
        elif now - self._noted > _AT_ONCE:
            self.__exit__()
            signal.raise_signal(number)


class Sampling:
    """Makes batches of rollouts, ahead of training or in step with it, and evaluates held-out rows.

    Every wait raises Stopped after `stop` has recorded a signal.
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
        self._session = session
        tasks, held_out = (
            load_swe_tasks(config.data.tasks, config.data.allow_network),
            config.data.held_out,
        )
        self._train = chosen_rows(read_rows(config.data.train, tokenizer, config, tasks), config)
        content = "".join(json.dumps([row.prompt, row.task]) for row in self._train)
        self.digest = hashlib.sha256(content.encode()).hexdigest()
        """Digest of the training rows, which a checkpoint keeps."""
        room = config.engine.max_model_tokens - 1
        self._fixed = fixed_tokens(tokenizer, min(_FIXED_TOKENS, room), config.run.seed)
        self._held_out = read_rows(held_out, tokenizer, config, tasks) if held_out else []
        self._rollouts = RolloutRunner(config, tokenizer, stop_ids, engine, session, tasks)
        self._outage = Outage(lambda within: require_working(session, within), config.grading)
        self._buffer = Buffer(self._make, config, self._outage, position)

    def refuse_other_rows(self, before: str) -> None:
        """Raise ConfigurationError if `before`, a resumed run's `digest`, is of other rows."""
        if before != self.digest:
            raise ConfigurationError(
                f"run.folder={self._config.run.folder!r} was begun with other rows than those of "
                f"data.train={self._config.data.train!r} and data.tasks={self._config.data.tasks!r}: "
                "give those again, or start a new run, with the export of this one as its model"
            )

    @property
    def position(self) -> int:
        """Position of the next prompt in the stream."""
        return self._buffer.position

    def check(self) -> str:
        """Grade an empty submission for the first row.

        Raises ConfigurationError if the grader raises, ProviderUnavailableError if the backend gives no
        verdict. Then check the first rows as `grading.check_tasks` says; return a line about their defects,
        empty if there are none, for SWE tasks and for a resumed run.
        """
        for _ in range(_LOOKS):
            work = self._rollouts.check(self._train[0])
            sample = self._wait(work, "grading the first row")
            if not sample.failed:
                break
        else:
            kind = ConfigurationError if sample.grader_raised else ProviderUnavailableError
            raise kind(f"the first row cannot be graded: {sample.verdict.detail}")
        if self.position or self._config.data.tasks:
            return ""
        rows = (row.task for row in self._train)
        looking = check_beforehand(
            self._session, self._config.grader(), rows, self._config.grading.check_tasks
        )
        reports = self._wait(looking, "checking the first rows")
        fine = all(report.status == "fine" for report in reports)
        return "" if fine else line_about(reports)

    def take(self, version: int) -> Batch:
        """Wait for the rollouts of the step that begins with the weights of `version`; return its batch.

        With `buffer.lag = 0` the engine sleeps afterwards, because nothing is sampled until `update`. Raises
        TimeoutError after run.timeout seconds, ProviderUnavailableError after an outage of grading.patience
        seconds, and GraderError if the grader raised too often.
        """
        last = self._config.run.steps - 1
        work = self._buffer.take(version, last)
        batch = self._wait(work, f"the rollouts of step {version + 1}")
        if not self._config.buffer.lag:
            self._engine.sleep()
        return batch

    def evaluate(self) -> dict[str, float]:
        """Return pass@k over the held-out rows: `held_out` for k = 1, and `held_out/pass@2` and so on.

        A sample passes with the full reward. `run.evaluate_samples` says how many a row has. Samples
        without a reward do not count; `held_out` is NaN if all are. Raises ProviderUnavailableError as
        `take` does.
        """
        count = self._config.run.evaluate_samples
        wanted = [(row, n) for row in self._held_out for n in range(max(count, 1))]

        async def run() -> dict[tuple[int, int], Rollout]:
            made = dict[tuple[int, int], Rollout]()
            while True:
                async with asyncio.TaskGroup() as running:
                    tasks = {
                        (row.number, n): running.create_task(
                            self._rollouts.one(
                                row, f"held out {row.number}" + " again" * n, greedy=not count
                            )
                        )
                        for row, n in wanted
                        if (row.number, n) not in made
                    }
                made |= {key: task.result() for key, task in tasks.items()}
                if not await self._outage.waited(made.values(), "held-out rows"):
                    return made
                made = {key: r for key, r in made.items() if r.verdict.reward is not None}

        passed: dict[int, list[bool]] = {row.number: [] for row in self._held_out}
        for (number, _), rollout in self._wait(run(), "the held-out rows").items():
            if rollout.verdict.reward is not None:
                passed[number].append(rollout.verdict.reward == 1)
        rates = pass_at_k(list(passed.values()))
        first = rates.pop("pass@1", math.nan)
        return {"held_out": first, **{f"held_out/{name}": rate for name, rate in rates.items()}}

    def update(self, weights: Weights, version: int) -> None:
        """Update the engine's weights between two tokens of the requests in flight."""
        self._engine.pause()
        try:
            self._engine.update_weights(weights, version)
        finally:
            self._engine.resume()

    def probe(self) -> list[tuple[float, list[TrainingSample]]]:
        """Return what each of the engine's servers computes: samples, with the temperature for each list.

        They are a few short completions of the first row, and fixed tokens. Raises EngineError, and
        TimeoutError after run.timeout seconds.
        """
        prompt, limits = self._train[0].prompt, self._config.rollout
        most = min(_PROBE_TOKENS, limits.max_completion_tokens)

        async def run() -> tuple[list[Completion], list[tuple[float, ...]]]:
            servers = self._engine.servers()
            asked = [
                SampleRequest(prompt, most, limits.temperature, seed, server)
                for server in servers
                for seed in range(_PROBES)
            ]
            written = asyncio.gather(*[self._engine.generate(each) for each in asked])
            scored = asyncio.gather(*[self._engine.score(self._fixed, each) for each in servers])
            return await asyncio.gather(written, scored)

        def sample(
            before: tuple[int, ...], ids: tuple[int, ...], logp: tuple[float, ...]
        ) -> TrainingSample:
            return TrainingSample(before, ids, (True,) * len(ids), logp, 0.0)

        written, scored = self._wait(run(), "the check of the engine's weights")
        return [
            (limits.temperature, [sample(prompt, each.ids, each.logp) for each in written]),
            (1.0, [sample(self._fixed[:1], self._fixed[1:], logp) for logp in scored]),
        ]

    def finished(self) -> Iterator[dict[str, Any]]:  # Any: JSON, see `record`
        """Yield a record of each rollout that finished in the last call of `take`, even if that call raised."""
        for group in tuple(self._buffer.finished):
            for member, rollout in enumerate(group.rollouts):
                yield record(group.number, member, rollout, self._rollouts.text)

    def spent(self) -> dict[Part, float]:
        """Return the seconds per part with rollouts in progress; see Clock.spent."""
        return self._rollouts.clock.spent()

    def close(self) -> None:
        """Cancel all rollouts and close the engine. The caller closes the session."""

        async def give_up() -> None:
            await self._buffer.aclose()
            self._rollouts.close()

        Operation(give_up()).result()
        self._engine.close()

    async def _make(self, number: int) -> Group:
        config = self._config
        row = row_of(self._train, number, None if config.data.curriculum else config.run.seed)
        return await self._rollouts.group(row, number)

    # Any: the send and yield types of a coroutine, not used here.
    def _wait(self, work: Coroutine[Any, Any, T], what: str) -> T:
        return self._stop.wait(work, self._config.run.timeout, what)
