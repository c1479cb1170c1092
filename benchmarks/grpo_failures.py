"""What failing sandboxes do to GRPO: the held-out pass rate without and with a share of failures.

    python -m benchmarks.grpo_failures [--rate 0.2] [--seeds 3] [--steps 50]

The model and task of `make grpo-demo`, in local sandboxes; of the sandboxes that grade, the share
`rate` cannot be made, and nothing is retried. Needs the training group.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
from pathlib import Path

from sandboxkit import ProviderUnavailableError
from sandboxkit.integrations.grpo import plot
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.toys import compose
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec

DEMO = Path(__file__).resolve().parents[1] / "examples" / "grpo" / "compose.toml"


class Failing(LocalProvider):
    """A share of the sandboxes, always the same ones, cannot be made."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate, self._numbers = rate, random.Random(0)
        self._first = True

    async def create(self, spec: SandboxSpec) -> str:
        # The first one is the program's look whether sandboxes work at all.
        first, self._first = self._first, False
        if self._numbers.random() < self._rate and not first:
            raise ProviderUnavailableError("injected")
        return await super().create(spec)


def run(folder: Path, seed: int, steps: int, rate: float) -> tuple[float, float, int]:
    """The held-out pass rate at the end, the share without a verdict, false zeros in samples.jsonl."""
    run = folder / f"run-{seed}-{rate}"
    settings = [
        f"run.folder={run}",
        *(f"run.seed={seed}", f"run.steps={steps}", f"run.evaluate_every={steps}"),
        f"model.name={folder}/model",
        *(f"data.train={folder}/train.jsonl", f"data.held_out={folder}/held_out.jsonl"),
        *("engine.kind=hf", "grading.provider=local"),
        "grading.options={together=true, limits={retries=0}}",
    ]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        if number := train(read(DEMO, settings), Failing(rate)):
            raise SystemExit(128 + number)
    rows = list(plot.rows(run / "metrics.jsonl"))
    shares = [row["infra_failed_rate"] for row in rows if "infra_failed_rate" in row]
    held_out = [row["held_out"] for row in rows if "held_out" in row]
    samples = plot.rows(run / "samples.jsonl")
    false = sum(row["outcome"] == "infra_error" and row["reward"] is not None for row in samples)
    return held_out[-1], sum(shares) / len(shares), false


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sandboxkit-benchmark-") as name:
        compose.write(Path(name))
        for seed in range(args.seeds):
            for rate in (0.0, args.rate):
                held_out, failed, false = run(Path(name), seed, args.steps, rate)
                print(
                    f"seed {seed}, {rate:.0%} injected: held out {held_out:.3f}, "
                    f"infra_failed_rate {failed:.3f}, false zeros {false}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
