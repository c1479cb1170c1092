"""A run's configuration: a TOML file and `--set a.b=c`, checked before anything starts."""

import dataclasses
import importlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations import rewards
from sandboxkit.integrations.grpo.advantages import Scale
from sandboxkit.integrations.grpo.config_values import MAY_CHANGE, build, check, may_change
from sandboxkit.integrations.grpo.objective import Objective

__all__ = ["Config", "read"]


@dataclass(frozen=True, slots=True)
class Run:
    """Output folder, length and schedule of a run."""

    folder: Annotated[str, "a folder", MAY_CHANGE] = "runs/grpo"
    steps: Annotated[int, "1 or more", MAY_CHANGE] = 100
    seed: int = 0
    checkpoint_every: Annotated[int, "1 or more", MAY_CHANGE] = 20
    """Steps between checkpoints. One is also written at the end, and when a signal or failure ends the run."""
    export_every: Annotated[int, "0 or more", MAY_CHANGE] = 0
    """Steps between exports of the model in Hugging Face's format; 0: only after the last step."""
    evaluate_every: Annotated[int, "0 or more", MAY_CHANGE] = 0
    """Steps between passes over the held-out rows; 0: only before the first and after the last step."""
    evaluate_samples: Annotated[int, "0 or more", MAY_CHANGE] = 1
    """Completions of each held-out row at `rollout.temperature`; 0: one, of the likeliest tokens (greedy)."""
    show_every: Annotated[int, "0 or more", MAY_CHANGE] = 0
    """Steps between two of which a rollout is printed, from the first on; 0: none."""
    timeout: Annotated[float, "a number above 0", MAY_CHANGE] = 1800.0
    """Time limit in seconds for a step's rollouts, and for waiting for other ranks."""
    device: Annotated[Literal["cpu", "cuda"], MAY_CHANGE] = "cpu"
    """Device for training; with cuda each rank has its own GPU."""
    threads: Annotated[int, "0 or more", MAY_CHANGE] = 0
    """torch's number of threads in each process; 0: torch's default."""
    wandb: Annotated[str, MAY_CHANGE] = ""
    """Weights & Biases project that also receives the metrics; empty: none."""


@dataclass(frozen=True, slots=True)
class Model:
    """The policy."""

    name: Annotated[str, "a folder or a name"] = ""
    """A folder or a hub name, in Hugging Face's format."""
    bf16: bool = False
    """Compute in bfloat16; weights, gradients and the optimizer stay float32."""
    checkpointing: Annotated[bool, MAY_CHANGE] = False
    """Activation checkpointing."""
    lora_rank: Annotated[int, "0 or more"] = 0
    """Rank of low-rank adapters, which alone are trained; 0: train all weights."""
    lora_alpha: Annotated[float, "a number above 0"] = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""
    lora_targets: Sequence[str] = ()
    """Names of the linear layers with an adapter; empty: all but the head."""


@dataclass(frozen=True, slots=True)
class Data:
    """JSON lines with `prompt` (text or messages), optionally `prefix`, and the grader's keys."""

    train: Annotated[str, MAY_CHANGE] = ""
    held_out: Annotated[str, MAY_CHANGE] = ""
    tasks: str = ""
    """SWE tasks: a source for `swe.load_tasks`, or `bundled`. A row names its task as `task_id` and
    needs no prompt; without `train` each task is a row. The task's tests grade it."""
    allow_network: Sequence[str] = ()
    """Servers that the tasks' `setup_allow` may name."""
    curriculum: str = ""
    """Folder of an earlier run with these rows. Those whose last 8 rewards in its records are equal are
    left out. Each pass takes the others from the easiest to the hardest; rows without records come last.
    Empty: all rows, shuffled in each pass."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The inference engine."""

    kind: Literal["hf", "vllm", "vllm_server"] = "hf"
    """hf and vllm sample in the training process; vllm supports only a single rank."""
    device: str = "cpu"
    """Device of the hf engine."""
    max_batch: Annotated[int, "1 or more"] = 256
    """Maximum number of sequences sampled together; for hf and vllm."""
    max_model_tokens: Annotated[int, "2 or more"] = 2048
    """Maximum tokens of prompt and completion together."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which hf and vllm compute, and in which weights are sent to a vllm_server."""
    max_difference: Annotated[float, "0 or more"] = 0.0
    """After each hand-over of weights the engine samples short completions and scores fixed tokens, and
    the trainer scores both too. The run stops if their log-probabilities differ by more than this on
    average, in nats per token. 0: 0.001 in float32, 0.2 in bfloat16."""
    cache_gb: Annotated[float, "0 or more"] = 0.0
    """Size of vllm's KV cache in GiB; 0: what `gpu_memory_utilization` leaves for it."""
    gpu_memory_utilization: Annotated[float, "a share above 0, up to 1"] = 0.92
    """Share of a GPU's memory, or of the machine's without GPUs, that vllm may use. Lower it if the
    trainer uses the same GPU. As the other settings of vllm its default is the library's."""
    enforce_eager: bool = False
    """Have vllm neither compile the model nor capture CUDA graphs: it starts faster and samples slower."""
    tensor_parallel_size: Annotated[int, "1 or more"] = 1
    """Number of GPUs over which vllm shards the model."""
    urls: Annotated[Sequence[str], "different URLs such as http://HOST:PORT"] = ()
    """URL of each vllm_server, such as http://127.0.0.1:8000."""
    timeout: Annotated[float, "a number above 0"] = 600.0
    """Time limit in seconds: of a vllm_server for one completion or one part of an update; of vllm
    for one token."""
    patience: Annotated[float, "a number above 0"] = 300.0
    """Seconds after which the run stops if a vllm_server does not answer at the start, or if there is
    no room in `folder`."""
    folder: str = "/dev/shm"
    """A folder through which weights get to a vllm_server, or to the processes of vllm with a
    `tensor_parallel_size` above 1. It has the same path for all, and room for the weights in `dtype`."""


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """How completions are made."""

    prompts_per_step: Annotated[int, "1 or more"] = 8
    group_size: Annotated[int, "1 or more"] = 8
    max_completion_tokens: Annotated[int, "1 or more"] = 256
    """Maximum tokens of all turns together, including the tools' answers."""
    temperature: Annotated[float, "a number above 0"] = 1.0
    max_turns: Annotated[int, "1 or more"] = 1
    """Maximum turns, or calls of an SWE task. With more than 1 the model may call tools in a sandbox."""
    artefact: Annotated[str, "an absolute path in the sandbox"] = ""
    """Absolute path of the file in the sandbox to grade; empty: grade the completion."""
    submission: Literal["block", "text"] = "block"
    """Which part of a completion is graded: its fenced code block, or the row's `prefix` and all of its text."""
    tool_timeout: Annotated[float, "a number above 0", MAY_CHANGE] = 30.0
    """Time limit of a tool call in seconds."""
    deadline: Annotated[float, "a number above 0", MAY_CHANGE] = 300.0
    """Time limit in seconds for a sandbox's start and for a tool call, plus the test time of an SWE
    task. Grading fails after this long without any sandbox of the session starting or ending."""


@dataclass(frozen=True, slots=True)
class Grading:
    """The reward: a grader of `integrations.rewards`, and its sandboxes."""

    grader: str = "HostCompare"
    """A class of integrations.rewards, or a custom `module:Class`."""
    options: Mapping[str, Any] = field(default_factory=dict)  # Any: the class's own arguments
    remember: Annotated[int, "0 or more", MAY_CHANGE] = 10_000
    """Number of cached verdicts: equal submissions for equal rows are graded once. 0: no cache."""
    check_tasks: Annotated[Literal["warn", "raise", "off"], MAY_CHANGE] = "warn"
    """Before the first step, check up to 8 rows with a reference solution (`reference`,
    `canonical_solution` or `code`), for at most 60 s, for cheats that pass and references that
    fail. warn: log them; raise: raise ConfigurationError; off: no check."""
    provider: Annotated[str, MAY_CHANGE] = ""
    image: Annotated[str, MAY_CHANGE] = ""
    max_concurrency: Annotated[int, "1 or more", MAY_CHANGE] = 8
    """Maximum number of sandboxes at a time."""
    max_infra_failed_rate: Annotated[float, "a share from 0 to 1", MAY_CHANGE] = 0.5
    """A step, or a pass over the held-out rows, is an outage if this share or more of the rollouts
    that needed a sandbox got no verdict from the backend. 0: the first failure is an outage; 1: only
    if all fail."""
    max_raised_rate: Annotated[float, "a share from 0 to 1", MAY_CHANGE] = 0.3
    """The run stops if the grader raised for this share or more of a step's rollouts that needed a
    sandbox, since waiting would not help. 0: at the first; 1: only if all raise."""
    patience: Annotated[float, "0 or more", MAY_CHANGE] = 300.0
    """Maximum duration of an outage in seconds, after which the run stops. Failed rollouts are remade
    once a sandbox starts. With 0 the run stops at once."""


@dataclass(frozen=True, slots=True)
class BufferConfig:
    """The buffer between rollouts and training."""

    lag: Annotated[int, "0 or more"] = 0
    """Maximum age, in steps, of a rollout's weights relative to the trainer's; 0: synchronous."""
    drop_equal: bool = True
    """Drop groups whose rewards are equal, which give no gradient, and sample others instead."""
    max_refill: Annotated[float, "0 or more"] = 1.0
    """Maximum number of replacement groups per step, as a multiple of prompts_per_step."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW and its schedule."""

    lr: Annotated[float, "a number above 0", MAY_CHANGE] = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    decay_ratio: Annotated[float, "a share above 0, up to 1"] = 1.0
    """The final share of the steps over which `linear` and `cosine` decay to 0. Below 1 the rate is
    constant before that (warmup, stable, decay: arXiv:2404.06395)."""
    warmup: Annotated[int, "0 or more"] = 0
    """Number of warmup steps."""
    betas: Annotated[Sequence[float], "two numbers from 0 to below 1"] = (0.9, 0.95)
    weight_decay: Annotated[float, "0 or more"] = 0.0
    max_grad_norm: Annotated[float, "a number above 0"] = 1.0
    minibatch: Annotated[int, "0 or more"] = 0
    """Maximum rollouts per optimizer step. Each pass over a batch divides it at random into nearly equal
    parts of at most this size. 0: one step with the whole batch."""
    max_tokens_per_row: Annotated[int, MAY_CHANGE] = 4096
    """Sequences are packed into rows of up to this many tokens, one forward pass per row."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """How advantages are computed; see advantages.py."""

    scale: Scale = "group"
    center: bool = True


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. The constructor raises ConfigurationError, which names the field and the remedy."""

    run: Run = field(default_factory=Run)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    engine: Annotated[EngineConfig, MAY_CHANGE] = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    grading: Grading = field(default_factory=Grading)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    objective: Objective = field(default_factory=Objective)
    advantage: Advantage = field(default_factory=Advantage)
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self) -> None:
        for section in dataclasses.fields(self):
            check(getattr(self, section.name), f"{section.name}.")
        centred = self.advantage.center or self.advantage.scale == "group"
        if self.rollout.group_size < 2 and centred:
            raise ConfigurationError(
                f"rollout.group_size={self.rollout.group_size}: one completion has no others to be "
                "compared with; give 2 or more, or advantage.center=false and advantage.scale=none"
            )
        if self.engine.max_model_tokens > self.optimizer.max_tokens_per_row:
            raise ConfigurationError(
                f"optimizer.max_tokens_per_row={self.optimizer.max_tokens_per_row} is less than one "
                f"sequence, engine.max_model_tokens={self.engine.max_model_tokens}: raise the one "
                "or lower the other"
            )
        if self.rollout.max_completion_tokens >= self.engine.max_model_tokens:
            raise ConfigurationError(
                f"rollout.max_completion_tokens={self.rollout.max_completion_tokens} leaves no room "
                f"for a prompt in engine.max_model_tokens={self.engine.max_model_tokens}"
            )
        self._check_data()
        self._check_engine()
        self.objective.under(off_policy=self.off_policy, updates=self.updates)
        if self.objective.old == "trainer" and not (self.updates or self.buffer.lag):
            raise ConfigurationError(
                "objective.old='trainer' does nothing with one update per batch on policy: set "
                "optimizer.minibatch, objective.epochs or buffer.lag, or leave it out"
            )
        if self.optimizer.warmup > self.run.steps:
            raise ConfigurationError(
                f"optimizer.warmup={self.optimizer.warmup} is more than run.steps={self.run.steps}: "
                "its learning rate would never be reached"
            )
        if self.optimizer.decay_ratio < 1 and self.optimizer.schedule == "constant":
            raise ConfigurationError(
                f"optimizer.decay_ratio={self.optimizer.decay_ratio!r} does nothing with "
                "optimizer.schedule='constant': use linear or cosine"
            )

    @property
    def off_policy(self) -> bool:
        """Whether a sample's policy may differ from that which is trained on it, and the ratio is against it."""
        return (self.buffer.lag > 0 or self.updates) and self.objective.old == "sampler"

    @property
    def updates(self) -> bool:
        """Whether a batch may have more than one optimizer step."""
        return self.objective.epochs > 1 or self.optimizer.minibatch > 0

    def refuse_changes(self, before: Mapping[str, Any]) -> None:
        """Raise ConfigurationError if a resumed run had other settings, given as decoded `to_json`.

        Those marked `MAY_CHANGE` may have changed.
        """
        now = json.loads(self.to_json())
        changed = [
            f"{section}.{key}={value!r} (was {before[section][key]!r})"
            for section, fields in now.items()
            for key, value in fields.items()
            if key in before.get(section, {}) and before[section][key] != value
            if not (may_change(Config, section) or may_change(type(getattr(self, section)), key))
        ]
        if changed:
            raise ConfigurationError(
                f"run.folder={self.run.folder!r} was begun otherwise: {', '.join(changed)}; set them "
                "back, or start a new run, with the export of this one as its model"
            )

    def _check_data(self) -> None:
        if not self.data.train and not self.data.tasks:
            raise ConfigurationError("data.train is not set: give a file of JSON lines")
        if self.data.tasks and (self.rollout.max_turns < 2 or self.rollout.artefact):
            raise ConfigurationError(
                f"data.tasks={self.data.tasks!r} with rollout.max_turns={self.rollout.max_turns}, "
                f"rollout.artefact={self.rollout.artefact!r}: give the model turns for its tools, "
                "and no artefact, for each task says what is graded"
            )

    def _check_engine(self) -> None:
        urls = self.engine.urls
        if (self.engine.kind == "vllm_server") != bool(urls):
            raise ConfigurationError(
                f"engine.kind={self.engine.kind!r} with engine.urls={list(urls)!r}: give urls for "
                "vllm_server, and for nothing else"
            )
        folder = self.engine.folder
        if (urls or self.engine.tensor_parallel_size > 1) and not Path(folder).is_dir():
            raise ConfigurationError(
                f"engine.folder={folder!r} is no folder: give one that vLLM sees at the same path"
            )

    def grader(self) -> rewards.Grader:
        """Make a new grader. Raises ConfigurationError if it cannot be made."""
        module, _, name = self.grading.grader.rpartition(":")
        options = dict(self.grading.options)
        try:
            made = getattr(importlib.import_module(module) if module else rewards, name)
            if "limits" in options:
                options["limits"] = rewards.Limits(**options["limits"])
            grader: rewards.Grader = made(**options)
            assert callable(grader.grade)
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"grading.grader={self.grading.grader!r} with grading.options={options!r} cannot be "
                f"made ({error}): give a class of sandboxkit.integrations.rewards or module:Class"
            ) from error
        return grader

    def to_json(self) -> str:
        """Return the settings as JSON, as saved with the run."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)


def read(path: str | Path | None, settings: Sequence[str] = ()) -> Config:
    """Read a TOML file and override it with `settings` such as "optimizer.lr=1e-5".

    A setting's value is TOML, or else plain text. Raises ConfigurationError.
    """
    try:
        values = {} if path is None else tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"configuration {str(path)!r} cannot be read: {error}") from error
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and key) or not isinstance(values.setdefault(section, {}), dict):
            raise ConfigurationError(f"--set {setting!r}: give section.field=value")
        try:
            values[section].update(tomllib.loads(f"{key} = {text}"))
        except tomllib.TOMLDecodeError:
            values[section][key] = text.strip()
    made: Config = build(Config, values, "")
    return made
