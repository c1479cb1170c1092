"""The steps of a run: get a batch, train on it, send the new weights to the engine, record the step.

rank 0    Sampling.take --- batch ---> broadcast
all       train_step (FSDP2) on the batch
all       whole weights, gathered one by one; rank 0 hands them to the engine
all       what the engine then samples is scored by both; too large a difference ends the run
rank 0    metrics.jsonl, rollouts/, console; all: checkpoint
"""

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sandboxkit.errors import SandboxError
from sandboxkit.integrations._training.clock import Part
from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.advantages import group_advantages
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.console import Console
from sandboxkit.integrations.grpo.engines import EngineError
from sandboxkit.integrations.grpo.errors import (
    CheckpointError,
    DivergedError,
    Stopped,
    TrainingError,
)
from sandboxkit.integrations.grpo.hand_over import handed, refuse_difference
from sandboxkit.integrations.grpo.metrics import batch_metrics, step_times
from sandboxkit.integrations.grpo.ranks import rank_count, shared
from sandboxkit.integrations.grpo.sampling import Sampling
from sandboxkit.integrations.grpo.training import StepReport, TrainingSample, score, train_step

__all__ = ["First", "Learner", "Loop", "learning_rate"]

_PATIENCE = 3
"""Number of skipped optimizer steps in a row after which the run diverges."""
_ON_ALL = (SandboxError, EngineError, TimeoutError, TrainingError, ExceptionGroup)
"""Errors that reach every rank in some form, so that all ranks can write a checkpoint together."""


@dataclass(frozen=True, slots=True)
class Learner:
    """The models and the optimizer; every rank holds its part of each."""

    model: PreTrainedModel
    reference: PreTrainedModel | None
    """The reference model of the KL term; None without one."""
    optimizer: torch.optim.Optimizer
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class First:
    """The objects that only rank 0 has."""

    sampling: Sampling
    console: Console


class Loop:
    """One process's part of a run. Steps count from 0; step v begins with the weights of version v."""

    def __init__(self, config: Config, learner: Learner, first: First | None, done: int) -> None:
        """`first` is None except on rank 0; `done` is the number of finished steps."""
        self._config, self._learner, self._first = config, learner, first
        self._run = Path(config.run.folder)
        self._done = self._saved = done
        self._unsaved = False
        """Whether the last checkpoint failed and must be retried after the next step."""
        self._position = first.sampling.position if first else 0
        self._rows = first.sampling.digest if first else ""
        self._skipped = 0
        # A sharded model computes in the type of its policy, whoever else has made a process group.
        self._autocast = config.model.bf16 and not isinstance(learner.model, FSDPModule)
        self._objective = config.objective.under(
            off_policy=config.off_policy, updates=config.updates
        )
        if self._objective.max_completion_tokens is None:
            most = config.rollout.max_completion_tokens
            self._objective = replace(self._objective, max_completion_tokens=most)

    def run(self) -> None:
        """Run to the last step or until a signal, and write a final checkpoint.

        If the engine, the sandboxes or the training fail, write a checkpoint and re-raise the error.
        """
        try:
            self._run_steps()
        except CheckpointError:  # writing one again would fail as well
            raise
        except Exception as error:
            if self._saved != self._done and (rank_count() == 1 or isinstance(error, _ON_ALL)):
                try:
                    self._save()
                except CheckpointError as second:
                    error.add_note(str(second))
                else:
                    error.add_note(f"a checkpoint was written after step {self._done}")
            raise

    def _run_steps(self) -> None:
        run = self._config.run
        with contextlib.suppress(Stopped):
            self._hand_over(self._done)
            self._evaluate_if_due()
            while self._done < run.steps:
                self._step()
                if self._unsaved or self._done % run.checkpoint_every == 0:
                    self._unsaved = not self._tried(self._save)
                if run.export_every and self._done % run.export_every == 0:
                    self._tried(lambda: self._export(f"export-{self._done:06}"))
                self._evaluate_if_due()
        if self._saved != self._done:
            self._save()
        if self._done == run.steps:
            self._export("export")

    def _step(self) -> None:
        """Run one step. Raises Stopped if a signal came before there was a batch."""
        begun = time.monotonic()
        batch, parts = Batch(), dict[Part, float]()

        def take() -> list[TrainingSample]:
            nonlocal batch, parts
            assert self._first is not None
            sampling, console = self._first.sampling, self._first.console
            before = sampling.spent()
            try:
                batch = sampling.take(self._done)
                parts = {part: spent - before[part] for part, spent in sampling.spent().items()}
            finally:
                console.rollouts(self._done + 1, sampling.finished())
            failures = [
                r.verdict.detail for g in batch.finished for r in g.rollouts if r.grader_raised
            ]
            if failures:
                shown = f"the grader raised for {len(failures)} rollouts of step {self._done + 1}"
                console.note(f"{shown}, which are left out; the first: {failures[0]}")
            return _samples(batch, self._config)

        samples = shared(take)
        taken = time.monotonic()
        rate = learning_rate(self._config, self._done)
        report = self._train(samples, rate) if samples else {}
        trained = time.monotonic()
        with contextlib.suppress(Stopped):  # the step is complete; the next wait ends the run
            self._hand_over(self._done + 1)
        handed = time.monotonic()
        if self._first:
            self._position = self._first.sampling.position
            sampled = batch_metrics(batch, self._done)
            times = {
                **step_times(
                    parts, wait=taken - begun, train=trained - taken, weights=handed - trained
                ),
                "tokens_per_second": sampled["completion_tokens"] / (handed - begun),
            }
            console = self._first.console
            console.step({"step": self._done + 1, **sampled, **report, "lr": rate, **times})
        self._done += 1

    def _train(self, samples: list[TrainingSample], rate: float) -> dict[str, float]:
        learner, config = self._learner, self._config
        for group in learner.optimizer.param_groups:
            group["lr"] = rate
        if self._objective.old == "trainer":
            own = self._score(samples, config.rollout.temperature)
            samples = [replace(s, old_logp=logp) for s, logp in zip(samples, own, strict=True)]
        reports = list[StepReport]()
        for part in self._parts(samples):
            report = train_step(
                learner.model,
                learner.optimizer,
                part,
                self._objective,
                max_tokens_per_row=config.optimizer.max_tokens_per_row,
                max_grad_norm=config.optimizer.max_grad_norm,
                temperature=config.rollout.temperature,
                reference=learner.reference,
                off_policy=config.off_policy,
                autocast=self._autocast,
            )
            reports.append(report)
            self._skipped = self._skipped + 1 if report.skipped else 0
            if self._skipped == _PATIENCE:
                raise DivergedError(
                    f"{_PATIENCE} optimizer steps in a row were not finite and changed nothing; of "
                    f"the last, loss {report.loss}, gradient norm {report.grad_norm}, distance to "
                    f"the sampler {report.off_policy}: if that distance is not finite, the engine "
                    "gave log-probabilities that are none; else lower optimizer.lr"
                )
        rows = [asdict(report) for report in reports]
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def _parts(self, samples: list[TrainingSample]) -> Iterator[list[TrainingSample]]:
        """Yield the samples of each optimizer step of a batch, the same on every rank."""
        count = math.ceil(len(samples) / (self._config.optimizer.minibatch or len(samples)))
        for epoch in range(self._objective.epochs):
            order = list(samples)
            if count > 1:
                random.Random(f"{self._config.run.seed} {self._done} {epoch}").shuffle(order)
            yield from (order[number::count] for number in range(count))

    def _score(self, samples: list[TrainingSample], temperature: float) -> list[tuple[float, ...]]:
        config = self._config
        return score(
            self._learner.model,
            samples,
            max_tokens_per_row=config.optimizer.max_tokens_per_row,
            temperature=temperature,
            autocast=self._autocast,
        )

    def _evaluate_if_due(self) -> None:
        """Evaluate on the held-out rows if it is due and not recorded; it stays due for a resumed run."""
        run, done = self._config.run, self._done
        due = done in (0, run.steps) or (run.evaluate_every and done % run.evaluate_every == 0)

        def evaluate() -> None:
            assert self._first is not None
            if not self._first.console.has_held_out(done):
                self._first.console.held_out(done, self._first.sampling.evaluate())

        if due and self._config.data.held_out:
            shared(evaluate)

    def _hand_over(self, version: int) -> None:
        """Send the weights to the engine, and check that it has them; every rank takes part.

        Raises EngineError if the engine's log-probabilities then differ from the trainer's.
        """
        weights = handed(self._learner.model, self._config)
        failure: list[Exception] = []
        if self._first:
            try:
                self._first.sampling.update(weights, version)
            except Exception as error:  # noqa: BLE001 - raised below, once all ranks are there
                failure.append(error)
        for _ in weights:  # other ranks, or a failed engine: gathering needs every rank
            pass

        def raise_it() -> None:
            if failure:
                raise failure[0]

        shared(raise_it)
        for temperature, samples in shared(
            lambda: self._first.sampling.probe() if self._first else []
        ):
            own = self._score(samples, temperature)
            refuse_difference(samples, own, version, self._config)

    def _save(self) -> None:
        learner = self._learner
        config = json.loads(self._config.to_json())
        state = {"position": self._position, "rows": self._rows, "config": config}
        checkpoint.save(self._run, self._done, learner.model, learner.optimizer, state)
        self._saved = self._done

    def _tried(self, write: Callable[[], None]) -> bool:
        """Call `write`; note a CheckpointError and continue. Return whether it succeeded."""
        try:
            write()
        except CheckpointError as error:
            if self._first:
                self._first.console.note(str(error))
            return False
        return True

    def _export(self, name: str) -> None:
        checkpoint.export(self._learner.model, self._learner.tokenizer, self._run / name)


def learning_rate(config: Config, step: int) -> float:
    """Return the rate of a step, from 0: linear warmup, then constant, then the schedule's decay to 0."""
    optimizer = config.optimizer
    if step < optimizer.warmup:
        return optimizer.lr * (step + 1) / optimizer.warmup
    falls = optimizer.decay_ratio * (config.run.steps - optimizer.warmup)
    past = max(0.0, 1 - (config.run.steps - step) / max(1.0, falls))
    match optimizer.schedule:
        case "linear":
            return optimizer.lr * (1 - past)
        case "cosine":
            return optimizer.lr * 0.5 * (1 + math.cos(math.pi * past))
        case _:
            return optimizer.lr


def _samples(batch: Batch, config: Config) -> list[TrainingSample]:
    """Return the samples to train on: every rollout with a reward, and its advantage."""
    if not batch.groups:
        return []
    rewards = torch.tensor(
        [[math.nan if r is None else r for r in group.rewards] for group in batch.groups]
    )
    advantages = group_advantages(
        rewards, scale=config.advantage.scale, center=config.advantage.center
    )
    return [
        TrainingSample(
            rollout.row.prompt,
            tuple(rollout.completion),
            tuple(rollout.mask),
            tuple(rollout.logp),
            advantage,
        )
        for group, row in zip(batch.groups, advantages.tolist(), strict=True)
        for rollout, advantage in zip(group.rollouts, row, strict=True)
        if rollout.verdict.reward is not None
        and not (config.objective.mask_truncated and rollout.truncated)
    ]
