"""Measures the effect of failing sandboxes on GRPO, by the held-out pass rate with and without failures.

    python -m benchmarks.grpo_failures [--rate 0.2] [--seeds 3] [--steps 50]

Trains the model of `make grpo-demo` on its task, in local sandboxes. The share `rate` of submissions
loses its sandbox while it runs, and the creation of the same share of sandboxes fails. This is done
once with the graders' default retries and once without retries, so that each failure leaves a rollout
without a verdict. A rollout is counted as wrong if its reward differs from that of the same answer in
another run. The learning rate falls to 0, as in the demo: at a constant rate a run sometimes loses at
its end what it has learned, even without failures. Needs the training group.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from toys import compose

from sandboxkit import ProviderUnavailableError
from sandboxkit.integrations._training import plot, records
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.integrations.rewards import Limits
from sandboxkit.provider import FirstCommand, Output
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.types import Command, Exit, SandboxSpec

DEMO = Path(__file__).resolve().parents[1] / "examples" / "grpo" / "compose.toml"
Answer = tuple[int, str]
"""A row's number and the model's answer to it."""


class Failing(LocalProvider):
    """A local provider in which a share of the creations fails and a share of the runs loses its sandbox.

    Graders run everything in a few sandboxes that they reset. Failing only creations would therefore
    have almost no effect.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate, self._numbers = rate, random.Random(0)
        self._first = True
        self.runs = self.lost = self.unmade = 0

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        # The first creation is the program's check that the backend works.
        check, self._first = self._first, False
        if not check and self.fails():
            self.unmade += 1
            raise ProviderUnavailableError("injected")
        return await super().create(spec, first)

    def fails(self) -> bool:
        """Draw whether the next creation or run is among those that fail."""
        return self._numbers.random() < self._rate


class _FailingBox(LocalBox):
    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        assert isinstance(self.provider, Failing)
        self.provider.runs += 1
        if self.provider.fails():
            self.provider.lost += 1
            await self.delete()
        return await super().run_python(code, command, output)


Failing.box_type = _FailingBox


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one run of the program."""

    curve: list[float]
    """Pass rates on held-out rows, before the first step and after every tenth step."""
    failed: float
    """The mean share of a step's rollouts that needed a sandbox and had no verdict."""
    rewards: dict[Answer, set[float]]
    provider: Failing


def run(folder: Path, seed: int, steps: int, rate: float, retries: int) -> Outcome:
    """Train once and return the outcome."""
    run, provider = folder / f"run-{seed}-{rate}-{retries}", Failing(rate)
    settings = [
        f"run.folder={run}",
        *(f"run.seed={seed}", f"run.steps={steps}"),
        f"model.name={folder}/model",
        *(f"data.train={folder}/train.jsonl", f"data.held_out={folder}/held_out.jsonl"),
        *("engine.kind=hf", "grading.provider=local", "optimizer.schedule=linear"),
        f"grading.options={{limits={{retries={retries}}}}}",
    ]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        if number := train(read(DEMO, settings), provider):
            raise SystemExit(128 + number)
    rows = list(plot.rows(run / "metrics.jsonl"))
    shares = [row["infra_failed_rate"] for row in rows if "infra_failed_rate" in row]
    rewards: dict[Answer, set[float]] = {}
    for row in (row for step in records.steps(run) for row in records.read(run, step)):
        if row["reward"] is not None:
            answer = row["row"], "".join(turn["text"] for turn in row["turns"])
            rewards.setdefault(answer, set()).add(row["reward"])
    held_out = [row["held_out"] for row in rows if "held_out" in row]
    return Outcome(held_out, sum(shares) / len(shares), rewards, provider)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    default = Limits().retries
    with tempfile.TemporaryDirectory(prefix="sandboxkit-benchmark-") as name:
        compose.write(Path(name))
        for seed in range(args.seeds):
            known: dict[Answer, set[float]] = {}
            for rate, retries in ((0.0, default), (args.rate, default), (args.rate, 0)):
                made = run(Path(name), seed, args.steps, rate, retries)
                shared = made.rewards.keys() & known.keys()
                wrong = sum(len(rewards) > 1 for rewards in made.rewards.values())
                wrong += sum(made.rewards[answer] != known[answer] for answer in shared)
                known = known or made.rewards
                provider, curve = made.provider, " ".join(f"{each:.2f}" for each in made.curve)
                print(
                    f"seed {seed}, {rate:.0%}, {retries} retries: {provider.lost} of "
                    f"{provider.runs} runs lost, {provider.unmade} sandboxes not made, without "
                    f"a verdict {made.failed:.3f}, wrong {wrong} of {len(shared)} answers known; "
                    f"held out {curve}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
