"""A run's configuration: a TOML file and `--set a.b=c`, checked before anything starts."""

import dataclasses
import importlib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations import rewards
from sandboxkit.integrations.grpo.advantages import Scale
from sandboxkit.integrations.grpo.objective import Objective

__all__ = ["Config", "read"]


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run writes, how long it is."""

    folder: str = "runs/grpo"
    steps: int = 100
    seed: int = 0
    checkpoint_every: int = 20
    """Steps; one is also written at the end, and where a signal or a failure ends the run."""
    export_every: int = 0
    """Steps between copies of the model in Hugging Face's format; 0 for only after the last."""
    evaluate_every: int = 0
    """Steps between passes over the held-out rows; 0 for only before the first and after the last."""
    timeout: float = 1800.0
    """Seconds that a step's rollouts, or the other ranks, may take."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where training computes; with cuda each rank has a device of its own."""
    threads: int = 0
    """torch's, in each process; 0 leaves torch's default."""
    wandb: str = ""
    """A project of Weights & Biases that gets the metrics too."""


@dataclass(frozen=True, slots=True)
class Model:
    """The policy."""

    name: str = ""
    """A folder or a hub's name, in Hugging Face's format."""
    bf16: bool = False
    """Compute in bfloat16; weights, gradients and the optimizer stay float32."""
    checkpointing: bool = False
    """Activation checkpointing."""
    lora_rank: int = 0
    """Of low-rank adapters, which alone are trained; 0 trains everything."""
    lora_alpha: float = 32.0
    """They are scaled by alpha / rank."""
    lora_targets: Sequence[str] = ()
    """Names of the linear layers that get one; none means all but the head."""


@dataclass(frozen=True, slots=True)
class Data:
    """JSON lines: `prompt` (text, or messages), perhaps `prefix`, and what the grader reads."""

    train: str = ""
    held_out: str = ""
    tasks: str = ""
    """SWE tasks, for rows that name one as `task_id` and need no prompt: a source as
    `swe.load_tasks` takes it, or `bundled`. The task's tests grade; without `train` each is a row."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What samples."""

    kind: Literal["hf", "vllm", "vllm_server"] = "hf"
    """hf and vllm sample in the training process, vllm for a run of one rank alone."""
    device: str = "cpu"
    """Of the hf engine."""
    max_batch: int = 256
    """Sequences sampled together; of hf and vllm."""
    max_model_tokens: int = 2048
    """Prompt and completion together."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What hf and vllm compute in, and what is sent to a vllm_server."""
    cache_gb: float = 1.0
    """GiB for the keys and values of vllm."""
    urls: Sequence[str] = ()
    """Of each vllm_server, such as http://10.0.0.5:8000."""
    timeout: float = 600.0
    """Seconds that a vllm_server may take for one completion, or one part of an update; or vllm
    for one token."""
    patience: float = 300.0
    """Seconds without any vllm_server that answers, at the start too, after which the run stops."""
    transfer: Literal["gloo", "nccl", "disk", "adapter"] = "gloo"
    """How weights get to a vllm_server: through memory, between GPUs, or as files in `folder`;
    `adapter` writes those of `model.lora_rank` alone there, and the server keeps the model's own."""
    address: str = "127.0.0.1"
    """Of this machine, as a vllm_server sees it."""
    folder: str = ""
    """Seen by this machine and every vllm_server under the same path; for disk and adapter."""

    @property
    def by_files(self) -> bool:
        """Whether weights go through `folder`."""
        return self.transfer in ("disk", "adapter")


@dataclass(frozen=True, slots=True)
class Rollout:
    """How completions are made."""

    prompts_per_step: int = 8
    group_size: int = 8
    max_completion_tokens: int = 256
    """Of all turns together, the tools' tokens included."""
    temperature: float = 1.0
    max_turns: int = 1
    """More than 1: the model may call tools in a sandbox, so often; of an SWE task so many calls."""
    artefact: str = ""
    """Absolute path of the file in the sandbox that is graded; else the completion is."""
    submission: Literal["block", "text"] = "block"
    """Of a completion: the fenced code block, or all of it after the row's `prefix`."""
    tool_timeout: float = 30.0
    """Seconds for a tool call."""
    deadline: float = 300.0
    """Seconds for a sandbox's start and a tool call, and for grading with all its retries; to which
    an SWE task's own time for its tests is added."""


@dataclass(frozen=True, slots=True)
class Grading:
    """The reward: a grader of `integrations.rewards`, and the sandboxes in which it runs."""

    grader: str = "HostCompare"
    """A class of integrations.rewards, or `module:Class` of one's own."""
    options: Mapping[str, Any] = field(default_factory=dict)  # Any: the class's own arguments
    remember: int = 10_000
    """Equal submissions for equal rows are graded once; so many verdicts are kept. 0: none."""
    provider: str = ""
    image: str = ""
    max_concurrency: int = 8
    """Sandboxes at a time."""
    max_infra_failed_rate: float = 0.5
    """A step in which so large a share, or more, of the rollouts that needed a sandbox had no
    verdict is an outage: with 0 the first such failure is, with 1 only that of all. So it is in a pass
    over the held-out rows."""
    patience: float = 300.0
    """Seconds that an outage may last, after which the run stops: what failed is made again once a
    sandbox starts. 0 stops it at once, and so does a grader that raises."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Between rollouts and training."""

    lag: int = 0
    """Steps by which a rollout's weights may be older than the trainer's; 0 is synchronous."""
    drop_equal: bool = True
    """Leave out groups of equal rewards, which teach nothing, and sample others instead."""
    max_refill: float = 1.0
    """At most so many times prompts_per_step other groups a step."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """AdamW and its schedule."""

    lr: float = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    decay_ratio: float = 1.0
    """The share of the steps, the last ones, over which `linear` and `cosine` fall to 0; with less than 1
    the rate is constant before (warmup, stable, decay: arXiv:2404.06395)."""
    warmup: int = 0
    """Steps."""
    betas: Sequence[float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_tokens_per_row: int = 4096
    """Sequences are packed into rows of so many tokens, one forward pass each."""


@dataclass(frozen=True, slots=True)
class Advantage:
    """See advantages.py."""

    scale: Scale = "group"
    center: bool = True


@dataclass(frozen=True, slots=True)
class Config:
    """All of it. Raises ConfigurationError, on construction, that names the field and the remedy."""

    run: Run = field(default_factory=Run)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    engine: Engine = field(default_factory=Engine)
    rollout: Rollout = field(default_factory=Rollout)
    grading: Grading = field(default_factory=Grading)
    buffer: Buffer = field(default_factory=Buffer)
    objective: Objective = field(default_factory=Objective)
    advantage: Advantage = field(default_factory=Advantage)
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = self._at(name)
            if not value >= least:
                raise ConfigurationError(f"{name}={value!r}: give {least} or more")
        for name in _POSITIVE:
            if not 0 < self._at(name) < math.inf:
                raise ConfigurationError(f"{name}={self._at(name)!r}: give a number above 0")
        for name, remedy in _NEEDED.items():
            if not self._at(name):
                raise ConfigurationError(f"{name} is not set: give {remedy}")
        if not 0 <= self.grading.max_infra_failed_rate <= 1:
            raise ConfigurationError(
                f"grading.max_infra_failed_rate={self.grading.max_infra_failed_rate!r}: "
                "give a share from 0 to 1"
            )
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
        if self.rollout.artefact and not self.rollout.artefact.startswith("/"):
            raise ConfigurationError(
                f"rollout.artefact={self.rollout.artefact!r}: give an absolute path in the sandbox"
            )
        self._check_data()
        self._check_engine()
        self.objective.under(off_policy=self.off_policy)
        if self.optimizer.warmup > self.run.steps:
            raise ConfigurationError(
                f"optimizer.warmup={self.optimizer.warmup} is more than run.steps={self.run.steps}: "
                "its learning rate would never be reached"
            )
        if self.optimizer.decay_ratio > 1:
            raise ConfigurationError(
                f"optimizer.decay_ratio={self.optimizer.decay_ratio!r}: give a share of the steps, 1 "
                "for all of them"
            )
        if self.optimizer.decay_ratio < 1 and self.optimizer.schedule == "constant":
            raise ConfigurationError(
                f"optimizer.decay_ratio={self.optimizer.decay_ratio!r} does nothing with "
                "optimizer.schedule='constant': use linear or cosine"
            )
        if len(self.optimizer.betas) != 2 or not all(0 <= b < 1 for b in self.optimizer.betas):
            raise ConfigurationError(
                f"optimizer.betas={self.optimizer.betas!r}: give two numbers from 0 to below 1"
            )

    @property
    def off_policy(self) -> bool:
        """Whether a batch may be of other weights than those that are trained on it."""
        return self.buffer.lag > 0 or self.objective.epochs > 1

    def refuse_changes(self, before: Mapping[str, Any]) -> None:
        """Refuse to go on with a run that was begun otherwise, `to_json` decoded.

        What may change: run but for its seed, engine, where sandboxes come from, times and limits.
        """
        now = json.loads(self.to_json())
        changed = [
            f"{section}.{key}={value!r} (was {before[section][key]!r})"
            for section, fields in now.items()
            for key, value in fields.items()
            if key in before.get(section, {}) and before[section][key] != value
            if not _may_change(section, key)
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
        for url in urls:
            if not isinstance(url, str) or not _URL.fullmatch(url):
                raise ConfigurationError(f"engine.urls: {url!r} is none; give http://HOST:PORT")
        if len(set(urls)) < len(urls):
            raise ConfigurationError(f"engine.urls={list(urls)!r} has one of them twice")
        folder = self.engine.folder
        transfer = self.engine.transfer
        if transfer == "adapter" and not (urls and self.model.lora_rank):
            raise ConfigurationError(
                f"engine.transfer='adapter' with engine.kind={self.engine.kind!r}, model.lora_rank="
                f"{self.model.lora_rank}: it is for adapters that a vllm_server gets; give another"
            )
        if urls and self.engine.by_files and not (folder and Path(folder).is_dir()):
            raise ConfigurationError(
                f"engine.folder={folder!r} is no folder: engine.transfer={transfer!r} needs "
                "one that the servers see, too"
            )

    def grader(self) -> rewards.Grader:
        """A new grader. Raises ConfigurationError where there is none of that name."""
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
        """As it is saved with the run."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)

    def _at(self, name: str) -> Any:  # Any: fields are of many types
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)


def _may_change(section: str, key: str) -> bool:
    return section == "engine" or f"{section}.{key}" in _MAY_CHANGE


_MAY_CHANGE = frozenset(
    {
        "run.folder",
        "run.steps",
        "run.checkpoint_every",
        "run.evaluate_every",
        "run.export_every",
        "run.timeout",
        "run.device",
        "run.threads",
        "run.wandb",
        "model.checkpointing",
        "data.held_out",
        "rollout.tool_timeout",
        "rollout.deadline",
        "grading.remember",
        "grading.provider",
        "grading.image",
        "grading.max_concurrency",
        "grading.max_infra_failed_rate",
        "grading.patience",
        "optimizer.max_tokens_per_row",
    }
)
_URL = re.compile(r"https?://[^/?#\s]+")
_LEAST = {
    "run.steps": 1,
    "run.checkpoint_every": 1,
    "run.evaluate_every": 0,
    "run.export_every": 0,
    "run.threads": 0,
    "model.lora_rank": 0,
    "engine.max_batch": 1,
    "engine.max_model_tokens": 2,
    "rollout.prompts_per_step": 1,
    "rollout.group_size": 1,
    "rollout.max_completion_tokens": 1,
    "rollout.max_turns": 1,
    "grading.remember": 0,
    "grading.patience": 0,
    "grading.max_concurrency": 1,
    "buffer.lag": 0,
    "buffer.max_refill": 0,
    "optimizer.warmup": 0,
    "optimizer.weight_decay": 0,
}
_POSITIVE = (
    "run.timeout",
    "model.lora_alpha",
    "rollout.temperature",
    "rollout.tool_timeout",
    "rollout.deadline",
    "engine.cache_gb",
    "engine.timeout",
    "engine.patience",
    "optimizer.lr",
    "optimizer.decay_ratio",
    "optimizer.max_grad_norm",
)
_NEEDED = {
    "run.folder": "a folder for checkpoints and metrics",
    "model.name": "a model's folder or its name on a hub",
}


def read(path: str | Path | None, settings: Sequence[str] = ()) -> Config:
    """The configuration in a TOML file with `settings`, such as "optimizer.lr=1e-5", over it.

    A setting's value is TOML, or else taken as text. Raises ConfigurationError.
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
    made: Config = _build(Config, values, "")
    return made


# Any: what TOML gives, and the classes above.
def _build(kind: type[Any], values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where}={values!r}: give a table, [{where}]")
    hints = typing.get_type_hints(kind)
    given = {}
    for key, value in values.items():
        name = f"{where}.{key}" if where else key
        if key not in hints:
            raise ConfigurationError(f"{name}={value!r}: no such field; there are {_list(hints)}")
        given[key] = _checked(hints[key], value, name)
    try:
        return kind(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"[{where}] {error}" if where else str(error)) from error


def _checked(hint: Any, value: Any, name: str) -> Any:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, name)
    if origin is Literal:
        if value not in choices:
            raise ConfigurationError(f"{name}={value!r}: use one of {_list(choices)}")
        return value
    if origin in (types.UnionType, typing.Union):  # X | None
        return _checked(choices[0], value, name)
    if hint is float and type(value) is int:
        return float(value)
    if hint is float and type(value) is float and not math.isfinite(value):
        raise ConfigurationError(f"{name}={value!r}: give a finite number")
    wanted = {Mapping: dict, Sequence: list}.get(origin or hint, hint)
    if type(value) is not wanted:
        raise ConfigurationError(
            f"{name}={value!r} is a {type(value).__name__}: give a {wanted.__name__}"
        )
    return tuple(value) if wanted is list else value


def _list(names: typing.Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)
