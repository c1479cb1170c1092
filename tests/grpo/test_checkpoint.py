"""Checkpoints survive kill -9 and damage; of a model with adapters only they are trained and kept."""

import json
import re
import shutil
from collections.abc import Callable
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
from tests.grpo.stand_ins import nursery
from tests.grpo.tiny import samples

pytestmark = [pytest.mark.filterwarnings("ignore")]  # torch's own checkpointing, of many kinds

STEPS = 5


def loaded(folder: str) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    model = load(folder)
    return model, torch.optim.AdamW(model.parameters())


def test_only_the_newest_are_kept(folder: str, tmp_path: Path) -> None:
    model, optimizer = loaded(folder)
    for step in (9, 10, 100):
        checkpoint.save(tmp_path, step, model, optimizer, {"seen": step}, keep=2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000010", "step-000100"]
    newest = tmp_path / "checkpoints" / "step-000100"
    assert checkpoint.newest(tmp_path) == (newest, [])
    assert checkpoint.read(newest)["seen"] == 100
    checkpoint.restore(newest, model, optimizer)


def test_a_checkpoint_that_was_not_finished_is_none(folder: str, tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])
    (tmp_path / "checkpoints" / ".step-000003").mkdir(parents=True)
    assert checkpoint.newest(tmp_path) == (None, [])
    made = checkpoint.save(tmp_path, 3, *loaded(folder), {})
    assert checkpoint.newest(tmp_path) == (made, [])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "harm", "expected"),
    [
        ("shards/__0_0.distcp", _cut, "shards/__0_0.distcp has .* bytes and not"),
        ("shards/__0_0.distcp", _flip, "has another content than was written"),
        ("shards/.metadata", Path.unlink, "No such file"),
        ("random.pt", _cut, "random.pt has"),
        ("run.json", _cut, "JSONDecodeError"),
    ],
)
def test_the_newest_complete_checkpoint_is_used_and_the_damaged_one_named(
    folder: str, tmp_path: Path, name: str, harm: Callable[[Path], None], expected: str
) -> None:
    model, optimizer = loaded(folder)
    whole = checkpoint.save(tmp_path, 1, model, optimizer, {})
    harm(checkpoint.save(tmp_path, 2, model, optimizer, {}) / name)
    newest, damaged = checkpoint.newest(tmp_path)
    assert newest == whole
    (report,) = damaged
    assert "step-000002 is damaged" in report
    assert re.search(expected, report)
    checkpoint.restore(whole, model, optimizer)
    # What is damaged takes no whole one's place among those that are kept.
    checkpoint.save(tmp_path, 2, model, optimizer, {}, keep=2)
    kept = [each.name for each in sorted((tmp_path / "checkpoints").glob("step-*"))]
    assert kept == ["step-000001", "step-000002"]


def test_another_number_of_ranks_goes_on(folder: str, tmp_path: Path) -> None:
    """From two ranks to one and back: the weights and moments are the same, whoever holds them."""
    with nursery() as started:

        def train(run: str, ranks: int, kill_after: int | None = None) -> list[float]:
            arguments = (folder, "dapo", str(STEPS), str(tmp_path / run))
            lines = started.train(*arguments, ranks=ranks, kill_after=kill_after)
            return [json.loads(line)["loss"] for line in lines]

        whole = train("whole", 1)
        train("run", 2, kill_after=2)
        resumed = train("run", 1)
        assert 1 <= len(resumed) <= STEPS - 1
        assert resumed == pytest.approx(whole[-len(resumed) :], abs=1e-5)
        shutil.rmtree(max((tmp_path / "run" / "checkpoints").glob("step-*")))
        assert train("run", 2) == pytest.approx(whole[-1:], abs=1e-5), "from the checkpoint before"
    one, two = (load(str(tmp_path / run / "export")).state_dict() for run in ("whole", "run"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-4, rtol=0)


ROW = Sequences([[5, 6, 7, 8, 9, 3, 2]], [2])


def adapted(folder: str, *targets: str) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = load(folder)
    lora.add(model, 4, 8.0, targets, seed=0)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    train_step(model, optimizer, samples(6, seed), Objective("dapo"), max_tokens_per_row=64)


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


def test_a_checkpoint_restores_them_and_an_export_is_plain(folder: str, tmp_path: Path) -> None:
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
