"""A run from its configuration to its end: opens all resources, and leaves the steps to loop.py.

Training is GRPO without a value model. It is on policy, or off policy with weights up to `buffer.lag`
steps older or `objective.epochs` optimizer steps per batch; see objective.py.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import GenerationConfig, PreTrainedModel

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._outages import require_working
from sandboxkit.integrations.grpo import checkpoint, lora
from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.console import Console
from sandboxkit.integrations.grpo.data import load_tokenizer, stop_ids
from sandboxkit.integrations.grpo.engines.start import start
from sandboxkit.integrations.grpo.errors import Stopped
from sandboxkit.integrations.grpo.loop import First, Learner, Loop
from sandboxkit.integrations.grpo.model import load, sharded
from sandboxkit.integrations.grpo.ranks import joined, on_first, rank_count, shared, this_rank
from sandboxkit.integrations.grpo.sampling import Sampling, Stop
from sandboxkit.integrations.rewards import grading_session
from sandboxkit.provider import PathLock, Provider

__all__ = ["train"]


def train(config: Config, provider: Provider | None = None) -> int:
    """Train to the last step, resuming from the run's newest checkpoint if there is one.

    Returns 0, or the number of the signal that ended the run early, after a checkpoint. `provider`
    replaces the configured one. Before the run starts, raises ConfigurationError, and the provider's
    error if no sandbox starts. Later raises ProviderUnavailableError if too many rollouts fail,
    EngineError, TimeoutError, DivergedError or CheckpointError, after writing a checkpoint.
    """
    run = Path(config.run.folder)
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("run.device='cuda': torch finds no GPU here; set run.device=cpu")
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(Stop())
        # The other ranks wait longer, so that rank 0 times out first and reports what it waited for.
        stack.enter_context(joined(config.run.device, config.run.timeout + 60))
        torch.manual_seed(config.run.seed)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        if this_rank() == 0:
            stack.enter_context(_alone(run))
        with contextlib.suppress(Stopped):
            # Start sandboxes before the model, which takes longer to load.
            session = on_first(lambda: _sandboxes(config, provider, stop, stack))
            learner = _learner(config)
            newest, notes = shared(lambda: checkpoint.newest(run))
            state: dict[str, Any] = {"step": 0, "position": 0}  # Any: JSON
            if newest is not None:
                state = checkpoint.read(newest)
                config.refuse_changes(state["config"])
                checkpoint.restore(newest, learner.model, learner.optimizer)
            first = on_first(lambda: _first(config, learner, session, stop, stack, state))
            if first:
                for note in notes:
                    first.console.note(note)
            Loop(config, learner, first, state["step"]).run()
            if first:
                first.console.end(stop.signal)
        return int(shared(lambda: stop.signal))


def _learner(config: Config) -> Learner:
    tokenizer = load_tokenizer(config.model.name)
    model = _policy(config)
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigurationError(
            f"the tokenizer of {config.model.name!r} has {len(tokenizer)} tokens, the model "
            f"{model.config.vocab_size}: give a model and a tokenizer that belong together"
        )
    reference = _policy(config, trained=False) if config.objective.beta else None
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=config.optimizer.lr,
        betas=(config.optimizer.betas[0], config.optimizer.betas[1]),
        weight_decay=config.optimizer.weight_decay,
        fused=True,
    )
    return Learner(model, reference, optimizer, tokenizer)


def _policy(config: Config, *, trained: bool = True) -> PreTrainedModel:
    def make(empty: bool) -> PreTrainedModel:
        checkpointing = trained and config.model.checkpointing
        model = load(config.model.name, checkpointing=checkpointing, empty=empty)
        if not trained:
            model.eval().requires_grad_(False)
        elif rank := config.model.lora_rank:
            alpha, targets = config.model.lora_alpha, config.model.lora_targets
            lora.add(model, rank, alpha, targets, config.run.seed)
        return model

    if dist.is_initialized():
        return sharded(make, device=config.run.device, bf16=config.model.bf16)
    moved: PreTrainedModel = make(False).to(config.run.device)
    return moved


def _sandboxes(
    config: Config, provider: Provider | None, stop: Stop, stack: contextlib.ExitStack
) -> Session:
    """Return the session, after its provider has started a test sandbox."""
    options = {"image": config.grading.image} if config.grading.image else {}
    # Rollouts with tools use other sandboxes than the grader does, so the pool is off.
    works = config.rollout.max_turns > 1
    session = stack.enter_context(
        grading_session(
            config.grader(),
            provider or config.grading.provider or None,
            max_concurrency=config.grading.max_concurrency,
            pool=0 if works else None,
            tags=("grpo", f"run:{_tag(config.run.folder)}"),
            **options,
        )
    )
    work = require_working(session, config.rollout.deadline)
    stop.wait(work, config.run.timeout, "the start of the first sandbox")
    return session


def _first(
    config: Config,
    learner: Learner,
    session: Session | None,
    stop: Stop,
    stack: contextlib.ExitStack,
    state: Mapping[str, Any],  # Any: JSON
) -> First:
    """Open engine, sampling and console, for a run whose checkpoint has `state`; the stack closes them."""
    assert session is not None
    try:
        generation = GenerationConfig.from_pretrained(config.model.name)
    except OSError:
        generation = None
    stops = stop_ids(learner.tokenizer, generation)
    vocabulary = learner.model.config.vocab_size
    wait = partial(stop.wait, limit=math.inf, what="the start of the servers")
    engine = start(config, stop=stops, vocabulary=vocabulary, ranks=rank_count(), wait=wait)
    stack.callback(engine.close)
    sampling = Sampling(config, learner.tokenizer, stops, engine, session, stop, state["position"])
    stack.callback(sampling.close)
    if "rows" in state:
        sampling.refuse_other_rows(state["rows"])
    wrong = sampling.check()
    console = stack.enter_context(Console(config, state["step"]))
    if wrong:
        console.note(wrong)
    return First(sampling, console)


def _tag(folder: str) -> str:
    """Return a folder's name as a tag value that every backend accepts."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", Path(folder).resolve().name)[:60]


@contextlib.contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Lock the run's folder. Raises ConfigurationError if another process uses it."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = PathLock.take(run / "lock", create=True)
    except OSError as error:
        raise ConfigurationError(f"run.folder={str(run)!r} cannot be made: {error}") from error
    if lock is None:
        raise ConfigurationError(
            f"run.folder={str(run)!r} is in use by another process: give another folder"
        )
    with lock:
        yield
