"""Train a model on coding tasks with TRL's GRPOTrainer, with rewards from sandboxes of any provider.

    pip install 'sandboxkit-sdk[trl,docker]'
    python trl_grpo.py --model Qwen/Qwen3-1.7B --provider docker --steps 100
    python trl_grpo.py --tiny --steps 2

The reward is the share of a task's tests that pass, and 0 for code that uses a banned name. Each test
is a separate run, in one of `--sandboxes` sandboxes that are reset between runs. `metrics.jsonl` in the
folder `--out` has one line per step, `reward.svg` shows the mean reward. Training ends after `--steps`,
or when the mean reward of four steps reaches `--until`. With `--tiny` the program creates a model of a
few hundred weights that learns to choose among given answers; nothing is downloaded.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

from sandboxkit.integrations.rewards import HostCompare, Limits
from sandboxkit.integrations.trl import SandboxReward

TASKS: dict[str, dict[str, Any]] = {
    "sort_numbers": {
        "prompt": "Write a Python function sort_numbers(numbers) that returns a sorted list, "
        "without sorted(), .sort() and heapq. Put the code between <answer> and </answer>.",
        "banned_patterns": ["sorted", ".sort", "heapq"],
        "test_list": [
            "assert sort_numbers([3, 1, 2]) == [1, 2, 3]",
            "assert sort_numbers([5, -1, 5]) == [-1, 5, 5]",
            "assert sort_numbers([]) == []",
        ],
    },
    "max_product": {
        "prompt": "Write a Python function max_product(numbers) that returns the largest product "
        "of a contiguous part of the list, without numpy. Put the code between <answer> and "
        "</answer>.",
        "banned_patterns": ["numpy"],
        "test_list": [
            "assert max_product([2, 3, -2, 4]) == 6",
            "assert max_product([-2, 0, -1]) == 0",
            "assert max_product([-2, 3, -4]) == 24",
        ],
    },
}
ANSWERS = [  # the tiny model chooses among these
    "<answer>def sort_numbers(numbers): return sorted(numbers)</answer>",
    "<answer>def sort_numbers(numbers): return numbers</answer>",
    """<answer>
def sort_numbers(numbers):
    result = []
    for number in numbers:
        result.insert(sum(other <= number for other in result), number)
    return result
</answer>""",
    """<answer>
def max_product(numbers):
    best = low = high = numbers[0]
    for number in numbers[1:]:
        ends = (number, low * number, high * number)
        low, high = min(ends), max(ends)
        best = max(best, high)
    return best
</answer>""",
]


def tiny() -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Return an untrained model, and a tokenizer in which each prompt and each answer is one token."""
    texts = ["<pad>", "<end>", *(task["prompt"] for task in TASKS.values()), *ANSWERS]
    vocabulary = {text: number for number, text in enumerate(texts)}
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<end>",
        padding_side="left",
    )
    sizes = {"hidden_size": 8, "intermediate_size": 8, "head_dim": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    config = Qwen3Config(vocab_size=len(texts), **sizes, **heads, **tokens)
    set_seed(0)
    return Qwen3ForCausalLM(config), words


class Record(TrainerCallback):  # type: ignore[misc] # their types are not followed
    """Writes the metrics of each step, ends training at the goal, and draws the mean reward."""

    def __init__(self, out: Path, until: float) -> None:
        self.rewards: list[float] = []
        self._out, self._until = out, until

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" not in logs:
            return  # the summary of the whole run
        self.rewards.append(logs["reward"])
        with (self._out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")
        latest = self.rewards[-4:]
        if len(latest) == 4 and sum(latest) / 4 >= self._until:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        last = max(len(self.rewards) - 1, 1)
        points = [
            f"{580 * at / last + 10:.1f},{190 - 180 * y:.1f}" for at, y in enumerate(self.rewards)
        ]
        (self._out / "reward.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 200">\n'
            "<title>mean reward of each step, from 0 to 1</title>\n"
            '<path d="M10,10 V190 H590" fill="none" stroke="gray"/>\n'
            f'<polyline points="{" ".join(points)}" fill="none" stroke="blue"/>\n</svg>\n'
        )


def main() -> None:
    """Train, and print the first and last mean reward."""
    # At every step TRL uses deprecated names of transformers.
    warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B")
    parser.add_argument("--tiny", action="store_true", help="train a tiny model, on the CPU")
    parser.add_argument("--provider", help="the default is SANDBOXKIT_PROVIDER")
    parser.add_argument("--steps", type=int, default=100, help="at most")
    parser.add_argument("--until", type=float, help="mean reward; default: 1, with --tiny 0.9")
    parser.add_argument("--sandboxes", type=int, default=16, help="total number of sandboxes")
    parser.add_argument("--out", type=Path, default=Path("trl_grpo"))
    args = parser.parse_args()
    model, words = tiny() if args.tiny else (args.model, None)
    rows = list(TASKS.values())
    if not args.tiny:
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "metrics.jsonl").unlink(missing_ok=True)
    own: dict[str, Any] = {"max_completion_length": 512, "learning_rate": 1e-6}
    if args.tiny:
        own = {"max_completion_length": 1, "learning_rate": 0.1, "use_cpu": True, "bf16": False}
    until = (0.9 if args.tiny else 1.0) if args.until is None else args.until
    record = Record(args.out, until)
    reward = SandboxReward(
        HostCompare(Limits(timeout=10), partial=True),
        name="pass_rate",
        provider=args.provider,
        max_concurrency=args.sandboxes,
        tags=["rl-training", f"model:{'tiny' if args.tiny else args.model.rpartition('/')[2]}"],
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=words,
        reward_funcs=reward,
        args=GRPOConfig(
            str(args.out),
            max_steps=args.steps,
            per_device_train_batch_size=16,
            num_generations=8,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **own,
        ),
        train_dataset=Dataset.from_list(rows * 8),
        callbacks=[record],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    finally:
        reward.close()
    steps, first, last = len(record.rewards), record.rewards[0], record.rewards[-1]
    print(f"{steps} steps, mean reward from {first:.2f} to {last:.2f}")
    print(f"see {args.out}/metrics.jsonl and {args.out}/reward.svg")


if __name__ == "__main__":
    main()
