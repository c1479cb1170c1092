"""The example programs: both demos learn; what `make grpo-real` is made of is sound, and GGUF files become models."""

import asyncio
import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import real_tasks
import torch
from real_families import FAMILIES
from toys.gguf_model import dequantize

from sandboxkit import ConfigurationError
from sandboxkit.integrations._training import plot
from sandboxkit.integrations.grpo.data import load_tokenizer
from sandboxkit.integrations.grpo.engines import SampleRequest
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.model import load
from sandboxkit.integrations.rewards import HostCompare, grading_session
from tests.grpo.test_program import no_sandboxes

DEMO = Path(real_tasks.__file__).with_name("demo.py")
pytestmark = [pytest.mark.timeout(900)]


def demo(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run it as `make grpo-demo` does, and return the metrics."""
    run = folder / folder.name  # whose name is its sandboxes' tag, and no other test's
    settings = [f"--folder={folder}", f"--set=run.folder={run}", "--set=grading.provider=local"]
    done = subprocess.run(
        [sys.executable, str(DEMO), *arguments, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert no_sandboxes(run)
    return plot.rows(run / "metrics.jsonl")


def test_it_solves_what_it_has_never_seen(tmp_path: Path) -> None:
    """A model so small can fall again, by the last digit of a gradient: one of two seeds does not."""
    for seed in range(2):
        folder = tmp_path / f"compose-{os.getpid()}-{seed}"
        rows = demo(folder, f"--set=run.seed={seed}")
        held_out = [row["held_out"] for row in rows if "held_out" in row]
        assert held_out[0] < 0.2
        if held_out[-1] >= 0.85:  # 0.91 to 0.95 with five seeds
            break
    assert held_out[-1] >= 0.85
    rewards = [row["reward"] for row in rows if "reward" in row]
    assert len(rewards) == 50
    assert sum(rewards[-10:]) / 10 >= 0.7
    run = folder / folder.name
    assert (run / "export" / "model.safetensors").exists()
    assert (run / "reward.svg").read_text().startswith("<svg")
    assert json.loads((run / "config.json").read_text())["run"]["steps"] == 50


@pytest.mark.nightly
def test_it_learns_to_write_run_read_the_error_and_fix(tmp_path: Path) -> None:
    folder = tmp_path / f"repair-{os.getpid()}"
    rows = [row for row in demo(folder, "repair", "--set=run.steps=30") if "reward" in row]
    assert len(rows) == 30
    rewards = [float(row["reward"] or 0) for row in rows]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert first < 0.6
    assert last > first + 0.25
    # More than one call a rollout: what the first said was read.
    assert all(float(row["tool_calls"] or 0) > 1.2 * float(row["rollouts"] or 0) for row in rows)
    assert {row["infra_failed_rate"] for row in rows} == {0.0}


def test_the_check_of_a_gpu_reports_what_works_also_on_a_cpu(tmp_path: Path) -> None:
    check = [sys.executable, str(DEMO.parents[2] / "scripts" / "gpu_check.py"), "adapters", "trl"]
    folder = tmp_path / f"gpu-check-{os.getpid()}"
    given = ["--device=cpu", f"--folder={folder}"]
    done = subprocess.run([*check, *given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "report.md").read_text().splitlines()
    assert lines[0].startswith("a CPU; torch ")
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| adapters", "| trl"]
    assert no_sandboxes(folder / "adapters")


def test_each_task_is_solved_by_its_reference_alone() -> None:
    numbers = random.Random(0)
    chosen = [numbers.choice(real_tasks.tasks(family)) for family in FAMILIES]
    grader = HostCompare()

    async def grade() -> list[tuple[float | None, float | None]]:
        async with grading_session(grader, "local", max_concurrency=4) as session:

            async def one(task: Any, submission: str) -> float | None:
                return (await grader.grade(session, submission, real_tasks.row(task))).reward

            wrong = [real_tasks.row(task)["cases"][0]["expected"] for task in chosen]
            pairs = [
                asyncio.gather(one(task, task.reference), one(task, f"{task.head} {constant!r}\n"))
                for task, constant in zip(chosen, wrong, strict=True)
            ]
            return [(right, guess) for right, guess in await asyncio.gather(*pairs)]

    assert asyncio.run(grade()) == [(1.0, 0.0)] * len(chosen)


def test_held_out_tasks_are_not_trained_on(tmp_path: Path) -> None:
    train, held_out, new = real_tasks.splits(0)
    heads = [{task.head for task in part} for part in (train, held_out, new)]
    assert [len(each) for each in heads] == [len(train), len(held_out), len(new)]
    assert not heads[0] & (heads[1] | heads[2])
    assert {task.family.name for task in held_out} == {task.family.name for task in train}
    assert not {task.family.name for task in new} & {task.family.name for task in train}
    assert {task.head for task in real_tasks.splits(1)[0]} != heads[0]
    problems = [{each["task_id"] for each in part} for part in real_tasks.mbpp(0)]
    assert [len(each) for each in problems] == [34, 17]
    assert not problems[0] & problems[1]
    real_tasks.write(tmp_path)
    first = [(tmp_path / name).read_bytes() for name in ("train.jsonl", "held_out.jsonl")]
    real_tasks.write(tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("train.jsonl", "held_out.jsonl")] == first


def tiny_gguf(file: Path, gguf: ModuleType) -> dict[str, torch.Tensor]:
    """Write a model with its matrices in Q4_1; returns what it holds."""
    given = tomllib.loads((Path(__file__).parent / "gguf.toml").read_text())
    size, inner = given["embedding_length"], given["feed_forward_length"]
    alphabet = [chr(code) for code in range(33, 127)] + ["Ċ", "Ġ"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "ĊĊ"]
    kinds = [3, 3, 3] + [1] * (len(tokens) - 3)
    given |= {"vocab_size": len(tokens), "token_list": tokens, "token_types": kinds}
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in given.items():
        getattr(writer, f"add_{name}")(value)
    generator, held = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
    shapes = {"token_embd": (len(tokens), size), "output_norm": (size,)}
    for layer in range(given["block_count"]):
        shapes |= {
            **{f"blk.{layer}.attn_{name}": (size, size) for name in ("q", "k", "v", "output")},
            **{f"blk.{layer}.{name}_norm": (size,) for name in ("attn", "ffn")},
            **{f"blk.{layer}.ffn_{name}": (inner, size) for name in ("gate", "up")},
            f"blk.{layer}.ffn_down": (size, inner),
        }
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator).numpy() * 0.2
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
            continue
        kind = gguf.GGMLQuantizationType.Q4_1
        packed = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        held[name] = torch.from_numpy(gguf.quants.dequantize(packed, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_gguf_file_becomes_a_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gguf = pytest.importorskip("gguf")
    held = tiny_gguf(tmp_path / "tiny.gguf", gguf)
    dequantize(tmp_path / "tiny.gguf", tmp_path / "model", one_line=True)
    model = load(str(tmp_path / "model"))
    assert capfd.readouterr() == ("", ""), "no progress bars"
    assert not hasattr(model.config, "quantization_config")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    own = model.state_dict()
    for name in ("up", "down", "gate"):
        found = own[f"model.layers.1.mlp.{name}_proj.weight"]
        torch.testing.assert_close(found, held[f"blk.1.ffn_{name}"])
    torch.testing.assert_close(own["model.embed_tokens.weight"], held["token_embd"])
    stop = model.generation_config.eos_token_id
    tokens = load_tokenizer(str(tmp_path / "model"))
    assert {tokens.convert_ids_to_tokens(i) for i in stop} == {"<|im_end|>", "Ċ", "ĊĊ"}
    engine = HFEngine(model, stop=stop)

    async def ask() -> int:
        ids = tuple(tokens("defx(y):")["input_ids"])
        return len((await engine.generate(SampleRequest(ids, 4, 1.0, 0))).ids)

    assert 1 <= asyncio.run(ask()) <= 4
    engine.close()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"broken\.gguf' cannot be read"):
        dequantize(tmp_path / "broken.gguf", tmp_path / "other")
