"""Create a tiny model and train it until it solves held-out tasks: `make grpo-demo`.

The task `compose` asks for a program of two steps. The task `repair` uses tools: the model writes a
program, runs a check, reads its output and fixes the program. Samples with vLLM if that is installed,
else with transformers.
"""

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from toys import compose, repair

from sandboxkit.integrations.grpo import program

TASKS: dict[str, Callable[[Path], None]] = {"compose": compose.write, "repair": repair.write}


def demo() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", choices=TASKS, default="compose")
    parser.add_argument("--folder", type=Path, default=Path("runs/grpo-demo"))
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    print(
        "warm start: the model learns the syntax of programs, not which one solves a task",
        flush=True,
    )
    TASKS[given.task](given.folder)
    settings = [
        f"run.folder={given.folder}/run",
        f"model.name={given.folder}/model",
        f"data.train={given.folder}/train.jsonl",
        f"engine.kind={'vllm' if importlib.util.find_spec('vllm') else 'hf'}",
    ]
    held_out = given.folder / "held_out.jsonl"
    if held_out.exists():
        settings.append(f"data.held_out={held_out}")
    config = Path(__file__).resolve().with_name(f"{given.task}.toml")
    return program.main([str(config), *(f"--set={each}" for each in settings + given.set)])


if __name__ == "__main__":
    sys.exit(demo())
