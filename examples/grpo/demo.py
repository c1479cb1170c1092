"""Train a model made on the spot until it solves what it has never seen: `make grpo-demo`.

vLLM samples where it is installed, in this process, and transformers elsewhere.
"""

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

from sandboxkit.integrations.grpo import program, toy

CONFIG = Path(__file__).resolve().with_name("demo.toml")


def demo() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/grpo-demo"))
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    print("warm start: the model learns the form of a program, none of its meaning", flush=True)
    toy.write(given.folder)
    settings = [
        f"run.folder={given.folder}/run",
        f"run.seed={given.seed}",
        f"model.name={given.folder}/model",
        f"data.train={given.folder}/train.jsonl",
        f"data.held_out={given.folder}/held_out.jsonl",
        f"engine.kind={'vllm' if importlib.util.find_spec('vllm') else 'hf'}",
        *given.set,
    ]
    return program.main([str(CONFIG), *(f"--set={each}" for each in settings)])


if __name__ == "__main__":
    sys.exit(demo())
