"""What `make grpo-real` is made of: its tasks are sound, and a model in a GGUF file can be trained."""

import asyncio
import importlib
import random
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from toys.gguf_model import dequantize

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.data import load_tokenizer
from sandboxkit.integrations.grpo.engines import SampleRequest
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.model import load
from sandboxkit.integrations.rewards import HostCompare, grading_session

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "grpo"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:  # Any: a module outside every package
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("real_tasks")


def test_each_task_is_solved_by_its_reference_alone(made: Any) -> None:
    numbers = random.Random(0)
    chosen = [numbers.choice(made.tasks(family)) for family in made.FAMILIES]
    grader = HostCompare(together=True)

    async def grade() -> list[tuple[float | None, float | None]]:
        async with grading_session(grader, "local", max_concurrency=4) as session:

            async def one(task: Any, submission: str) -> float | None:
                return (await grader.grade(session, submission, made.row(task))).reward

            wrong = [made.row(task)["cases"][0]["expected"] for task in chosen]
            pairs = [
                asyncio.gather(one(task, task.reference), one(task, f"{task.head} {constant!r}\n"))
                for task, constant in zip(chosen, wrong, strict=True)
            ]
            return [(right, guess) for right, guess in await asyncio.gather(*pairs)]

    assert asyncio.run(grade()) == [(1.0, 0.0)] * len(chosen)


def test_held_out_tasks_are_not_trained_on(made: Any, tmp_path: Path) -> None:
    train, held_out, new = made.splits(0)
    heads = [{task.head for task in part} for part in (train, held_out, new)]
    assert [len(each) for each in heads] == [len(train), len(held_out), len(new)]
    assert not heads[0] & (heads[1] | heads[2])
    assert {task.family.name for task in held_out} == {task.family.name for task in train}
    assert not {task.family.name for task in new} & {task.family.name for task in train}
    assert {task.head for task in made.splits(1)[0]} != heads[0]
    problems = [{each["task_id"] for each in part} for part in made.mbpp(0)]
    assert [len(each) for each in problems] == [34, 17]
    assert not problems[0] & problems[1]
    made.write(tmp_path)
    first = [(tmp_path / name).read_bytes() for name in ("train.jsonl", "held_out.jsonl")]
    made.write(tmp_path)
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
