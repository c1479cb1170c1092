"""The whole run: rollouts on rank 0, training on all ranks, weights back to the engine.

    rank 0    Sampling.take --- batch ---> broadcast
    all       train_step (FSDP2) on the batch
    all       whole weights, gathered one by one; rank 0 hands them to the engine
    rank 0    metrics.jsonl, samples.jsonl, console; all: checkpoint

It is GRPO with one optimizer step a batch, on a batch of the current weights (buffer.lag=0) or of
weights up to `lag` steps older, corrected by truncated importance sampling. It is not PPO: there is
no value model, and no second epoch over a batch.
"""

import contextlib
import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.grpo import checkpoint, lora
from sandboxkit.integrations.grpo.advantages import group_advantages
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.console import Console
from sandboxkit.integrations.grpo.data import load_tokenizer, stop_ids
from sandboxkit.integrations.grpo.engines import Weights
from sandboxkit.integrations.grpo.engines.start import start
from sandboxkit.integrations.grpo.model import load, shard
from sandboxkit.integrations.grpo.ranks import rank_count, this_rank
from sandboxkit.integrations.grpo.sampling import Sampling, Stop, Stopped, batch_metrics
from sandboxkit.integrations.grpo.training import Sample, train_step
from sandboxkit.provider import Provider

__all__ = ["learning_rate", "samples_of", "train"]

T = TypeVar("T")


def train(config: Config, provider: Provider | None = None) -> int:
    """Train to the last step, from the run's newest checkpoint if it has one.

    Returns the number of the signal that ended it early, after a checkpoint, or 0. `provider`
    takes the place of the configured one. Raises ConfigurationError before anything starts,
    ProviderUnavailableError when too many rollouts fail, EngineError, TimeoutError.
    """
    run = Path(config.run.folder)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(Stop())
        _join(config, stack)
        torch.manual_seed(config.run.seed)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        if this_rank() == 0:
            stack.enter_context(_alone(run))
        tokenizer = load_tokenizer(config.model.name)
        model, reference = _policy(config), None
        if len(tokenizer) > model.config.vocab_size:
            raise ConfigurationError(
                f"the tokenizer of {config.model.name!r} has {len(tokenizer)} tokens, the model "
                f"{model.config.vocab_size}: give a model and a tokenizer that belong together"
            )
        if config.objective.beta:
            reference = _policy(config, trained=False)
        optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=config.optimizer.lr,
            betas=(config.optimizer.betas[0], config.optimizer.betas[1]),
            weight_decay=config.optimizer.weight_decay,
            fused=True,
        )
        newest = checkpoint.latest(run)
        state = {} if newest is None else checkpoint.restore(newest, model, optimizer)
        first, position = int(str(state.get("step", 0))), int(str(state.get("position", 0)))

        def sampling_side() -> tuple[Sampling, Console] | None:
            vocabulary = model.config.vocab_size
            return _open(config, tokenizer, vocabulary, provider, stop, stack, first, position)

        side = _on_first(sampling_side)
        return _loop(config, model, reference, optimizer, tokenizer, side, first, stop)


def _loop(
    config: Config,
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    optimizer: torch.optim.Optimizer,
    tokenizer: PreTrainedTokenizerBase,
    side: tuple[Sampling, Console] | None,
    first: int,
    stop: Stop,
) -> int:
    """`side` is rank 0's. Steps are counted from 0; the weights of version v begin step v."""
    run, steps = Path(config.run.folder), config.run.steps
    objective = config.objective
    if objective.max_completion_tokens is None:
        objective = replace(objective, max_completion_tokens=config.rollout.max_completion_tokens)
    sampling, console = side or (None, None)
    position, saved = sampling.position if sampling else 0, first
    _hand_over(model, sampling, first)
    done, batch = first, Batch()
    ended = not _evaluated(config, sampling, console, first) if first == 0 else False
    while done < steps and not ended:
        begun = time.monotonic()

        def next_batch() -> list[Sample] | None:
            nonlocal batch
            assert sampling is not None
            try:
                batch = sampling.take(done)  # noqa: B023 - called at once
            except Stopped:
                return None
            return samples_of(batch, config)

        samples = _shared(next_batch)
        if samples is None:
            ended = True
            break
        waited = time.monotonic() - begun
        rate = learning_rate(config, done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        report: dict[str, float] = {}
        if samples:
            report = asdict(
                train_step(
                    model,
                    optimizer,
                    samples,
                    objective,
                    max_tokens_per_row=config.optimizer.max_tokens_per_row,
                    max_grad_norm=config.optimizer.max_grad_norm,
                    temperature=config.rollout.temperature,
                    reference=reference,
                )
            )
        trained = time.monotonic() - begun - waited
        _hand_over(model, sampling, done + 1)
        total = time.monotonic() - begun
        if sampling and console:
            position = sampling.position
            sampled = batch_metrics(batch, done)
            times = {
                "wait_seconds": waited,
                "train_seconds": trained,
                "sync_seconds": total - waited - trained,
                "step_seconds": total,
                "tokens_per_second": sampled["completion_tokens"] / total,
            }
            console.step({"step": done + 1, **sampled, **report, "lr": rate, **times})
            for finished in batch.finished[:1]:
                console.samples(done + 1, sampling.samples(finished))
        done += 1
        every = config.run.evaluate_every
        if done == steps or (every and done % every == 0):
            ended = not _evaluated(config, sampling, console, done)
        if done == steps or done % config.run.checkpoint_every == 0:
            checkpoint.save(run, done, model, optimizer, {"position": position})
            saved = done
    if saved != done:
        checkpoint.save(run, done, model, optimizer, {"position": position})
    if done == steps:
        checkpoint.export(model, tokenizer, run / "export")
    if console:
        console.end(stop.signal)
    return int(_shared(lambda: stop.signal))


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


def samples_of(batch: Batch, config: Config) -> list[Sample]:
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


def _policy(config: Config, *, trained: bool = True) -> PreTrainedModel:
    model = load(config.model.name, checkpointing=trained and config.model.checkpointing)
    if not trained:
        model.eval().requires_grad_(False)
    elif rank := config.model.lora_rank:
        lora.add(model, rank, config.model.lora_alpha, config.model.lora_targets)
    if dist.is_initialized():
        kind = config.run.device
        mesh = init_device_mesh(kind, (dist.get_world_size(),))
        return shard(model.to(kind), mesh, bf16=config.model.bf16)
    if config.model.bf16:
        raise ConfigurationError(
            "model.bf16=True is FSDP's mixed precision: start it with torchrun"
        )
    moved: PreTrainedModel = model.to(config.run.device)
    return moved


def _open(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    vocabulary: int,
    provider: Provider | None,
    stop: Stop,
    stack: contextlib.ExitStack,
    first: int,
    position: int,
) -> tuple[Sampling, Console]:
    options = {"image": config.grading.image} if config.grading.image else {}
    session = stack.enter_context(
        Session(
            provider or config.grading.provider or None,
            max_concurrency=config.grading.max_concurrency,
            tags=("grpo", f"run:{_tag(config.run.folder)}"),
            **options,  # type: ignore[arg-type] # of SandboxSpec
        )
    )
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(config.model.name)
    except OSError:
        generation = None
    stops = stop_ids(tokenizer, generation)
    engine = start(config, stop=stops, vocabulary=vocabulary, ranks=rank_count())
    stack.callback(engine.close)
    sampling = Sampling(config, tokenizer, stops, engine, session, stop, position)
    stack.callback(sampling.close)
    sampling.check()
    console = stack.enter_context(Console(config, first))
    return sampling, console


def _tag(folder: str) -> str:
    """A folder's name as a tag's value, with what every backend takes."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", Path(folder).resolve().name)[:60]


def _evaluated(
    config: Config, sampling: Sampling | None, console: Console | None, version: int
) -> bool:
    """False when a signal came meanwhile."""

    def run() -> bool:
        assert sampling is not None
        assert console is not None
        if not config.data.held_out:
            return True
        try:
            console.held_out(version, sampling.evaluate())
        except Stopped:
            return False
        return True

    return _shared(run)


def _hand_over(model: PreTrainedModel, sampling: Sampling | None, version: int) -> None:
    """Give the engine the weights; every rank takes part in gathering each of them."""
    weights = lora.merged(model, _whole(model))
    if sampling is not None:
        sampling.update(weights, version)
    for _ in weights:  # the ranks without an engine
        pass


def _whole(model: PreTrainedModel) -> Weights:
    for name, value in model.state_dict().items():
        yield name, value.full_tensor() if isinstance(value, DTensor) else value


def _join(config: Config, stack: contextlib.ExitStack) -> None:
    """The process group, under torchrun; a rank that waits longer than run.timeout gives up."""
    if "WORLD_SIZE" not in os.environ:
        return
    if config.run.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if config.run.device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=config.run.timeout + 60))
    stack.callback(dist.destroy_process_group)


@contextlib.contextmanager
def _alone(run: Path) -> Iterator[None]:
    """The run's folder for this process only."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"run.folder={str(run)!r} is in use by another process: give another folder"
            ) from error
        yield


def _on_first(make: Callable[[], T]) -> T | None:
    """Call on rank 0 alone; where it raises, the others do too instead of waiting for it."""
    made: list[T] = []

    def run() -> None:
        made.append(make())

    _shared(run)
    return made[0] if made else None


def _shared(make: Callable[[], T]) -> T:
    """Call on rank 0 and give every rank what it returned."""
    if not dist.is_initialized():
        return make()
    message: list[Any] = [None, ""]  # Any: as torch has it
    if dist.get_rank() == 0:
        try:
            message[0] = make()
        except BaseException as error:
            dist.broadcast_object_list([None, f"{type(error).__name__}: {error}"], 0)
            raise
    dist.broadcast_object_list(message, 0)
    if message[1]:
        raise RuntimeError(f"rank 0 stopped: {message[1]}")
    result: T = message[0]
    return result
