"""The steps of a run: a batch, an optimizer step, the new weights to the engine, and what is kept.

rank 0    Sampling.take --- batch ---> broadcast
all       train_step (FSDP2) on the batch
all       whole weights, gathered one by one; rank 0 hands them to the engine
rank 0    metrics.jsonl, samples.jsonl, console; all: checkpoint
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sandboxkit.integrations.grpo import checkpoint, lora
from sandboxkit.integrations.grpo.advantages import group_advantages
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.console import Console
from sandboxkit.integrations.grpo.engines import Weights
from sandboxkit.integrations.grpo.ranks import shared
from sandboxkit.integrations.grpo.sampling import Sampling, Stopped, batch_metrics
from sandboxkit.integrations.grpo.training import Sample, train_step

__all__ = ["First", "Learner", "Loop", "learning_rate"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Learner:
    """What every rank has a part of."""

    model: PreTrainedModel
    reference: PreTrainedModel | None
    """For the KL term."""
    optimizer: torch.optim.Optimizer
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class First:
    """What rank 0 has besides."""

    sampling: Sampling
    console: Console


class Loop:
    """One process's part of a run. Steps are counted from 0; weights of version v begin step v."""

    def __init__(self, config: Config, learner: Learner, first: First | None, done: int) -> None:
        """`first` is rank 0's alone; `done` steps lie behind."""
        self._config, self._learner, self._first = config, learner, first
        self._run = Path(config.run.folder)
        self._done = self._saved = done
        self._position = first.sampling.position if first else 0
        self._objective = config.objective
        if self._objective.max_completion_tokens is None:
            most = config.rollout.max_completion_tokens
            self._objective = replace(self._objective, max_completion_tokens=most)

    def run(self) -> None:
        """To the last step, or until a signal came: then a checkpoint is the last thing."""
        run = self._config.run
        self._hand_over(self._done)
        going = self._done > 0 or self._evaluate()
        while going and self._done < run.steps:
            going = self._step()
            if not going:
                break
            last = self._done == run.steps
            if last or (run.evaluate_every and self._done % run.evaluate_every == 0):
                going = self._evaluate()
            if last or self._done % run.checkpoint_every == 0:
                self._save()
        if self._saved != self._done:
            self._save()
        if self._done == run.steps:
            checkpoint.export(self._learner.model, self._learner.tokenizer, self._run / "export")

    def _step(self) -> bool:
        """False where a signal came before there was a batch."""
        begun = time.monotonic()
        batch = Batch()

        def take() -> list[Sample]:
            nonlocal batch
            assert self._first is not None
            batch = self._first.sampling.take(self._done)
            return _samples(batch, self._config)

        samples = _unless_stopped(take)
        if samples is None:
            return False
        taken = time.monotonic()
        rate = learning_rate(self._config, self._done)
        report = self._train(samples, rate) if samples else {}
        trained = time.monotonic()
        self._hand_over(self._done + 1)
        handed = time.monotonic()
        if self._first:
            self._position = self._first.sampling.position
            sampled = batch_metrics(batch, self._done)
            times = {
                "wait_seconds": taken - begun,
                "train_seconds": trained - taken,
                "sync_seconds": handed - trained,
                "step_seconds": handed - begun,
                "tokens_per_second": sampled["completion_tokens"] / (handed - begun),
            }
            console = self._first.console
            console.step({"step": self._done + 1, **sampled, **report, "lr": rate, **times})
            for finished in batch.finished[:1]:
                console.samples(self._done + 1, self._first.sampling.samples(finished))
        self._done += 1
        return True

    def _train(self, samples: list[Sample], rate: float) -> dict[str, float]:
        learner, config = self._learner, self._config
        for group in learner.optimizer.param_groups:
            group["lr"] = rate
        report = train_step(
            learner.model,
            learner.optimizer,
            samples,
            self._objective,
            max_tokens_per_row=config.optimizer.max_tokens_per_row,
            max_grad_norm=config.optimizer.max_grad_norm,
            temperature=config.rollout.temperature,
            reference=learner.reference,
        )
        return asdict(report)

    def _evaluate(self) -> bool:
        """False where a signal came meanwhile."""

        def evaluate() -> bool:
            assert self._first is not None
            if self._config.data.held_out:
                self._first.console.held_out(self._done, self._first.sampling.evaluate())
            return True

        return bool(_unless_stopped(evaluate))

    def _hand_over(self, version: int) -> None:
        """Give the engine the weights; every rank takes part in gathering each of them."""
        weights = lora.merged(self._learner.model, _whole(self._learner.model))
        if self._first:
            self._first.sampling.update(weights, version)
        for _ in weights:  # the ranks without an engine
            pass

    def _save(self) -> None:
        learner, state = self._learner, {"position": self._position}
        checkpoint.save(self._run, self._done, learner.model, learner.optimizer, state)
        self._saved = self._done


def learning_rate(config: Config, step: int) -> float:
    """That of a step, counted from 0: warmed up from lr / warmup, then down to 0 or constant."""
    optimizer = config.optimizer
    if step < optimizer.warmup:
        return optimizer.lr * (step + 1) / optimizer.warmup
    past = (step - optimizer.warmup) / max(1, config.run.steps - optimizer.warmup)
    match optimizer.schedule:
        case "linear":
            return optimizer.lr * (1 - past)
        case "cosine":
            return optimizer.lr * 0.5 * (1 + math.cos(math.pi * past))
        case _:
            return optimizer.lr


def _samples(batch: Batch, config: Config) -> list[Sample]:
    """What to train on: every rollout that has a reward, with its advantage."""
    if not batch.groups:
        return []
    rewards = torch.tensor(
        [[math.nan if r is None else r for r in group.rewards] for group in batch.groups]
    )
    advantages = group_advantages(
        rewards, scale=config.advantage.scale, center=config.advantage.center
    )
    return [
        Sample(
            rollout.row.prompt,
            tuple(rollout.completion),
            tuple(rollout.mask),
            tuple(rollout.logp),
            advantage,
        )
        for group, row in zip(batch.groups, advantages.tolist(), strict=True)
        for rollout, advantage in zip(group.rollouts, row, strict=True)
        if rollout.verdict.reward is not None
    ]


def _unless_stopped(make: Callable[[], T]) -> T | None:
    """What rank 0 made, on every rank; None where a signal came."""

    def attempt() -> T | None:
        try:
            return make()
        except Stopped:
            return None

    return shared(attempt)


def _whole(model: PreTrainedModel) -> Weights:
    for name, value in model.state_dict().items():
        yield name, value.full_tensor() if isinstance(value, DTensor) else value
