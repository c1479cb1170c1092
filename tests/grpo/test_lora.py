"""Adapters: nothing but they is trained, and nobody outside the trainer sees them."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo import checkpoint, lora
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.hand_over import handed
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.training import train_step
from tests.grpo.tiny import samples

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own checkpointing, of many kinds

ROW = Sequences([[5, 6, 7, 8, 9, 3, 2]], [2])


def adapted(folder: str, *targets: str) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = load(folder)
    lora.add(model, 4, 8.0, targets, seed=0)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    train_step(
        model,
        optimizer,
        samples(6, seed),
        Objective("dapo", max_completion_tokens=12),
        max_tokens_per_row=64,
    )


def test_new_adapters_change_nothing(folder: str) -> None:
    plain, (model, _) = load(folder), adapted(folder)
    torch.testing.assert_close(logp_of(model, ROW)[0], logp_of(plain, ROW)[0], atol=1e-6, rtol=0)
    found = dict(lora.merged(model, model.state_dict().items()))
    assert list(found) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(found[name], value), name


def test_adapters_begin_the_same_whatever_was_drawn_before(folder: str) -> None:
    """Several ranks draw other numbers before than a single one, for a model without weights."""
    made = []
    for drawn in range(2):
        model = load(folder)
        torch.manual_seed(drawn)
        state = torch.get_rng_state()
        lora.add(model, 4, 8.0, (), seed=3)
        assert torch.equal(torch.get_rng_state(), state)
        made.append({n: value for n, value in model.named_parameters() if lora.is_adapter(n)})
    assert made[0]
    for name, value in made[0].items():
        assert torch.equal(value, made[1][name]), name


def test_only_the_adapters_are_trained_and_merged_they_are_the_model(folder: str) -> None:
    model, optimizer = adapted(folder)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for seed in range(3):
        step(model, optimizer, seed)
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {name for name in before if ".lora_" in name}
    plain = load(folder)
    unlike = logp_of(plain, ROW)[0]
    plain.load_state_dict(dict(lora.merged(model, model.state_dict().items())))
    torch.testing.assert_close(logp_of(plain, ROW)[0], logp_of(model, ROW)[0], atol=1e-5, rtol=0)
    assert (logp_of(plain, ROW)[0] - unlike).abs().max() > 1e-2


def test_a_checkpoint_brings_them_back_and_an_export_is_a_plain_model(
    folder: str, tmp_path: Path
) -> None:
    model, optimizer = adapted(folder)
    step(model, optimizer)
    made = checkpoint.save(tmp_path, 1, model, optimizer, {})
    step(model, optimizer, 1)
    other, its_optimizer = adapted(folder)
    checkpoint.restore(made, other, its_optimizer)
    step(other, its_optimizer, 1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    checkpoint.export(model, None, tmp_path / "export")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert not [name for name in exported.state_dict() if "lora" in name]
    torch.testing.assert_close(logp_of(exported, ROW)[0], logp_of(model, ROW)[0], atol=1e-5, rtol=0)


def test_the_layers_can_be_named(folder: str) -> None:
    model, _ = adapted(folder, "q_proj")
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained
    assert all(".q_proj.lora_" in name for name in trained)
    with pytest.raises(ConfigurationError, match=r"model\.lora_targets=\['nowhere'\]: .*nowhere"):
        adapted(folder, "nowhere")


def test_what_an_engine_gets_is_cast_before_it_is_gathered(folder: str) -> None:
    given = [
        *(f"model.name={folder}", "data.train=rows.jsonl", "engine.kind=vllm_server"),
        *('engine.urls=["http://a:1"]', "engine.dtype=bfloat16", "model.lora_rank=4"),
    ]
    model, optimizer = adapted(folder, "q_proj")
    step(model, optimizer)
    merged = dict(handed(model, read(None, given)))
    whole = dict(lora.merged(model, model.state_dict().items()))
    assert merged.keys() == whole.keys()
    for name, value in merged.items():
        # What is merged is the sum of what was gathered, cast once more when it is sent.
        summed = name.endswith("q_proj.weight")
        assert value.dtype is (torch.float32 if summed else torch.bfloat16), name
        torch.testing.assert_close(value.float(), whole[name], atol=0.02, rtol=0.01)
