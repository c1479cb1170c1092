"""Train a model that is made on the spot to repair its program: write, run, read the error, fix."""

import argparse
import shutil
import sys
from pathlib import Path

from sandboxkit.integrations.grpo import program, toy_turns

CONFIG = Path(__file__).resolve().with_name("multi_turn.toml")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/grpo-multi-turn"))
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    toy_turns.write(given.folder)
    settings = [
        f"run.folder={given.folder}/run",
        f"model.name={given.folder}/model",
        f"data.train={given.folder}/train.jsonl",
        *given.set,
    ]
    return program.main([str(CONFIG), *(f"--set={each}" for each in settings)])


if __name__ == "__main__":
    sys.exit(main())
