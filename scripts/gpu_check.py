"""Train tiny models on this machine's GPU, and report what of the trainer works there: `scripts/gpu-check.sh`.

Needs no network and no model: each check trains a model of 0.5 M parameters, with local sandboxes, in a process of
its own. With `--device cpu` it runs without a GPU, to check itself.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "grpo"
sys.path.insert(0, str(EXAMPLES))
from toys import compose  # noqa: E402

SECONDS = 150
"""Time limit of one training."""
Row = dict[str, float]


class Checks:
    """The checks, by their names; each returns what it measured and raises AssertionError if that is wrong."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device

    def learns(self) -> str:
        rows = self._train("learns", "run.steps=30")
        before, after = (
            statistics.mean(row["reward"] for row in part) for part in (rows[:5], rows[-5:])
        )
        assert after > before + 0.2, f"the reward went from {before:.2f} to {after:.2f}"
        speed = statistics.median(row["tokens_per_second"] for row in rows)
        return f"reward {before:.2f} to {after:.2f}, {speed:.0f} tok/s"

    def continues(self) -> str:
        whole = self._train("whole", "run.steps=6")
        self._train("parts", "run.steps=3")
        parts = self._train("parts", "run.steps=6")
        apart = max(
            abs(one[name] - other[name]) / max(abs(one[name]), 1e-3)
            for one, other in zip(whole, parts, strict=True)
            for name in ("reward", "grad_norm")
        )
        assert apart < 0.05, f"a run that was continued differs by {apart:.1%}"
        return f"a run that was continued differs by {apart:.1g} of reward or gradient norm"

    def bf16(self) -> str:
        return self._close(self._train("bf16", "run.steps=10", "model.bf16=true"), 0.05)

    def adapters(self) -> str:
        return self._close(self._train("adapters", "run.steps=5", "model.lora_rank=8"), 1e-3)

    def vllm(self) -> str:
        if not importlib.util.find_spec("vllm"):
            return "skipped: vLLM is not installed"
        more = ("engine.kind=vllm", "engine.dtype=bfloat16", "model.bf16=true")
        return self._close(self._train("vllm", "run.steps=10", *more), 0.1)

    def trl(self) -> str:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        from sandboxkit.integrations.rewards import HostCompare
        from sandboxkit.integrations.trl import SandboxReward

        cases = [{"args": [1], "expected": 9}]
        row = {"prompt": "task add 2 then mul 3:", "entry_point": "f", "cases": cases}
        model = AutoModelForCausalLM.from_pretrained(self._folder / "model")
        with contextlib.closing(SandboxReward(HostCompare(), provider="local")) as reward:
            config = GRPOConfig(
                str(self._folder / "trl"),
                max_steps=2,
                num_generations=4,
                per_device_train_batch_size=4,
                max_completion_length=16,
                report_to=[],
                disable_tqdm=True,
                use_cpu=self._device == "cpu",
                bf16=self._device != "cpu",
            )
            trainer = GRPOTrainer(
                model=model,
                reward_funcs=reward,
                args=config,
                train_dataset=Dataset.from_list([row] * 8),
                processing_class=compose.tokenizer(),
            )
            trainer.train()
        where = {str(each.device.type) for each in model.parameters()}
        assert where == {self._device}, f"TRL trained on {where}"
        return f"{trainer.state.global_step} steps"

    def _close(self, rows: Sequence[Row], bound: float) -> str:
        far = max(row["off_policy"] for row in rows)
        assert far < bound, f"sampler and trainer differ by {far:.3g}"
        return f"sampler and trainer differ by {far:.2g} at most"

    def _train(self, name: str, *settings: str) -> list[Row]:
        run = self._folder / name
        given = [
            *(
                f"run.folder={run}",
                f"run.device={self._device}",
                f"model.name={self._folder}/model",
            ),
            *(f"data.train={self._folder}/train.jsonl", "grading.provider=local", *settings),
        ]
        command = [
            sys.executable,
            "-m",
            "sandboxkit.integrations.grpo",
            str(EXAMPLES / "compose.toml"),
        ]
        with (self._folder / f"{name}.log").open("w") as log:
            done = subprocess.run(
                [*command, *(f"--set={each}" for each in given)],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            )
        assert done.returncode == 0, (self._folder / f"{name}.log").read_text()[-1500:]
        rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return [row for row in rows if "reward" in row]


def main() -> int:
    """Run the checks and print a table; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--folder", type=Path, default=Path("runs/gpu-check"))
    parser.add_argument(
        "only", nargs="*", metavar="CHECK", help="learns, continues, ...; default: all"
    )
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu checks the checks")
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    compose.write(given.folder)
    checks = Checks(given.folder, given.device)
    named: dict[str, Callable[[], str]] = {
        each: getattr(checks, each)
        for each in ("learns", "continues", "bf16", "adapters", "vllm", "trl")
        if each in given.only or not given.only
    }
    lines, failed = [_machine(given.device), "", "| check | s | result |", "|---|---|---|"], False
    print(lines[0], flush=True)
    for name, check in named.items():
        begun = time.monotonic()
        try:
            found = check()
        except Exception as error:  # noqa: BLE001 - it is reported
            failed, found = True, f"FAILED: {type(error).__name__}: {error}"
        print(f"{name:10} {time.monotonic() - begun:4.0f} s  {found}", flush=True)
        lines.append(f"| {name} | {time.monotonic() - begun:.0f} | {found.splitlines()[-1]} |")
    (given.folder / "report.md").write_text("\n".join(lines) + "\n")
    print(f"see {given.folder}/report.md")
    return int(failed)


def _machine(device: str) -> str:
    gpu = "a CPU"
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        gpu = f"{properties.name}, {properties.total_memory >> 30} GiB, CUDA {torch.version.cuda}"
    versions = []
    for package in ("torch", "transformers", "trl", "peft", "vllm"):
        if importlib.util.find_spec(package):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return f"{gpu}; {', '.join(versions)}"


if __name__ == "__main__":
    sys.exit(main())
