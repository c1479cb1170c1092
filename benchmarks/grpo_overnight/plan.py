"""What a run is to be, which is fixed when it begins, and how far it has come, which outlives the program."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sandboxkit import ConfigurationError

__all__ = ["LEGS", "Leg", "Plan", "Progress", "write"]

LEGS = ("disturbed", "undisturbed")


@dataclass(frozen=True, slots=True)
class Plan:
    """Of both legs, the disturbed one and the one that it is compared with."""

    hours: float
    """That the undisturbed one is to take, by which `steps` were chosen."""
    steps: int
    seed: int
    vllm: bool
    """Whether the servers are vLLM's, and not a stand-in."""
    rate: float
    """The share of sandboxes, and of runs in them, that die."""
    kill_every: float
    """Seconds of training between two kills of a server."""
    back_after: float
    """Seconds after which it is started again."""
    signals: int
    """SIGTERM to the trainer, at equal distances in steps."""
    look_every: float
    """Seconds between two looks at the trainer."""
    further: int = 0
    """Steps that the disturbed one makes by itself, once it has made those of both."""

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """That of a folder; None where it has none yet."""
        path = folder / "plan.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def save(self, folder: Path) -> None:
        """Fix it."""
        write(folder / "plan.json", json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    def prolonged(self, folder: Path, further: int | None) -> Self:
        """With so many `further` steps, kept in its folder; as it is for None."""
        if further is None:
            return self
        if further < self.further:
            raise ConfigurationError(
                f"further={further}: it has gone on for {self.further} already"
            )
        longer = dataclasses.replace(self, further=further)
        longer.save(folder)
        return longer

    def refuse_changes(self, **given: object) -> None:
        """Raises ConfigurationError where something given is not as it was when the run began."""
        for name, value in given.items():
            if value is not None and value != getattr(self, name):
                raise ConfigurationError(
                    f"{name}={value!r}: the folder's run was begun with {getattr(self, name)!r}; "
                    "leave it out, or give another folder"
                )

    def last(self, leg: "Leg") -> int:
        """The step at which a leg ends."""
        return self.steps + (self.further if leg.disturbed else 0)

    def settings(self, folder: Path, leg: "Leg", urls: list[str], provider: str) -> list[str]:
        """The trainer's, over examples/grpo/compose.toml."""
        quoted = ", ".join(f'"{url}"' for url in urls)
        # The longer, the smaller the steps: what the demo learns in 50 of them is to take them all.
        lr = min(6e-4, 6e-4 * (150 / self.steps) ** 0.5)
        return [
            *(f"run.folder={leg.run}", f"run.seed={self.seed}", f"run.steps={self.last(leg)}"),
            f"run.evaluate_every={max(1, self.steps // 20)}",
            f"run.checkpoint_every={max(5, self.steps // 100)}",
            f"model.name={folder}/model",
            *(f"data.train={folder}/train.jsonl", f"data.held_out={folder}/held_out.jsonl"),
            *("engine.kind=vllm_server", f"engine.urls=[{quoted}]", "engine.timeout=120"),
            *("rollout.prompts_per_step=8", "rollout.group_size=8"),
            f"grading.provider={provider}",
            # One retry and not two, so that some rollouts have no verdict; and few verdicts are
            # remembered, so that there is something to grade when the model has learnt it all.
            "grading.options={together=true, limits={retries=1}}",
            "grading.remember=64",
            *(f"optimizer.lr={lr:.3g}", "optimizer.schedule=linear"),
        ]


@dataclass(frozen=True, slots=True)
class Leg:
    """The folder of one run of the trainer, and of what is noted beside it."""

    folder: Path

    @property
    def disturbed(self) -> bool:
        """Or else what it is compared with."""
        return self.folder.name == LEGS[0]

    @property
    def run(self) -> Path:
        """The trainer's own."""
        return self.folder / "run"

    @property
    def log(self) -> Path:
        """What the trainer said."""
        return self.folder / "trainer.log"

    @property
    def looks(self) -> Path:
        """Lines of JSON."""
        return self.folder / "looks.jsonl"

    @property
    def faults(self) -> Path:
        """What was injected into sandboxes."""
        return self.folder / "faults"


@dataclass(slots=True)
class Progress:
    """How far a leg is."""

    pieces: int = 0
    """How often the program was started for it."""
    seconds: float = 0.0
    """In which a trainer ran."""
    kills: int = 0
    """Of servers."""
    signals: int = 0
    """SIGTERM to the trainer, that were planned."""
    done: bool = False
    left: list[str] = field(default_factory=list)
    """What ended trainers, and the servers, left behind."""
    events: list[dict[str, Any]] = field(default_factory=list)  # Any: JSON

    @classmethod
    def load(cls, leg: Leg) -> Self:
        """That of a leg, or a new one."""
        path = leg.folder / "progress.json"
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, leg: Leg) -> None:
        """Keep it."""
        write(leg.folder / "progress.json", json.dumps(dataclasses.asdict(self)) + "\n")

    def note(self, what: str, **more: object) -> None:
        """An event, now."""
        self.events.append({"seconds": round(self.seconds), "what": what, **more})


def write(path: Path, text: str) -> None:
    """A file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}")
    new.write_text(text, "utf-8")
    new.replace(path)
