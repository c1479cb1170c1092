"""A run that can be left alone: nothing that is not a number reaches the weights, and whatever ends
it leaves a checkpoint."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations._training import records
from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.engines import EngineError, Weights
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.errors import DivergedError
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.integrations.grpo.training import TrainingSample, train_step
from tests.grpo import tiny
from tests.grpo.test_program import Failing, metrics

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings


def config(toy: Path, run: Path, *more: str) -> Config:
    few = ["rollout.prompts_per_step=4", "run.checkpoint_every=100"]
    return read(None, tiny.settings(toy, run, *few, *more))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["advantage", "sampler"])
def test_a_step_that_is_not_finite_changes_nothing(folder: str, where: str, value: float) -> None:
    batch = tiny.samples(4)
    first = batch[0]
    logp = (-value,) * len(first.completion) if where == "sampler" else first.sampler_logp
    advantage = value if where == "advantage" else 1.0
    batch[0] = TrainingSample(first.prompt, first.completion, first.mask, logp, advantage)
    objective = Objective(weighting="token_mask", weight_cap=1e30)
    model, before = load(folder), load(folder).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert train_step(model, optimizer, batch, objective, max_tokens_per_row=24).skipped
    assert all(torch.equal(found, before[name]) for name, found in model.state_dict().items())
    whole = tiny.samples(4)
    assert not train_step(model, optimizer, whole, objective, max_tokens_per_row=24).skipped


def test_the_trainer_has_no_dropout_either(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    assert shape.attn_pdrop == shape.resid_pdrop == shape.embd_pdrop == 0.1
    GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    row = Sequences([(2, 3, 4, 5, 6, 7, 8)], [2])
    model = load(str(tmp_path))
    assert model.training
    first, second = logp_of(model, row)[0], logp_of(model, row)[0]
    sampled, _ = logp_of(model.eval(), row)
    assert torch.equal(first, second)
    assert torch.equal(first, sampled)


@pytest.mark.parametrize(
    "updates", [["objective.epochs=3"], ["optimizer.minibatch=3", "objective.old=trainer"]]
)
def test_clipping_acts_in_off_policy_runs(toy: Path, tmp_path: Path, updates: list[str]) -> None:
    clips = ["objective.clip_high=1e-4", "objective.clip_low=1e-4"]
    assert train(config(toy, tmp_path / "run", "run.steps=2", *updates, *clips)) == 0
    rows = metrics(tmp_path / "run")
    assert {"truncated", "all_right", "all_wrong", "outcome/passed"} <= rows[0].keys()
    assert any(row["groups"] for row in rows)
    for row in (row for row in rows if row["groups"]):
        assert row["clip_fraction"] > 0, "of the last of three epochs"
        if "objective.old=trainer" in updates:
            # The weight is against the policy before the first update, which is the sampler's.
            assert row["weight"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("version", [0, 1])
def test_an_engine_with_other_weights_stops_the_run(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    whole = HFEngine.update_weights

    def doubled(self: HFEngine, weights: Weights, number: int) -> None:
        changed = ((name, 2 * value if "v_proj" in name else value) for name, value in weights)
        whole(self, changed if number == version else weights, number)

    monkeypatch.setattr(HFEngine, "update_weights", doubled)
    run = tmp_path / "run"
    with pytest.raises(EngineError, match=rf"the weights of step {version}, .* by the trainer"):
        train(config(toy, run, "run.steps=3"))
    assert metrics(run) == []


def test_fixed_tokens_that_an_engine_scores_otherwise_stop_the_run(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its completions have the right log-probabilities."""
    whole, asked = HFEngine.score, list[tuple[int, ...]]()

    async def shifted(self: HFEngine, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        asked.append(ids)
        return tuple(value - 0.01 for value in await whole(self, ids, server))

    monkeypatch.setattr(HFEngine, "score", shifted)
    with pytest.raises(EngineError, match=r"the weights of step 0, 62 tokens .* of 0.01 and more"):
        train(config(toy, tmp_path / "run", "run.steps=3"))
    (ids,) = asked
    assert len(ids) == 63, "one is left for the token that vLLM samples"
    assert 0 not in ids, "a special token"


def test_a_sampler_that_says_no_numbers_stops_the_run(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = HFEngine.generate

    async def broken(self: HFEngine, request: Any) -> Any:
        done = await whole(self, request)
        if request.seed < 4:  # the check after a hand-over
            return done
        return dataclasses.replace(done, logp=tuple(math.nan for _ in done.logp))

    run = tmp_path / "run"
    before = run / "export"
    assert train(config(toy, run, "run.steps=1")) == 0
    monkeypatch.setattr(HFEngine, "generate", broken)
    with pytest.raises(DivergedError, match=r"3 optimizer steps in a row .* log-probabilities"):
        train(config(toy, run, "run.steps=9"))
    assert [row["skipped"] for row in metrics(run)] == [False, True, True]
    newest, damaged = checkpoint.newest(run)
    assert newest is not None
    assert not damaged
    assert checkpoint.read(newest)["step"] == 3
    model = load(str(before))
    checkpoint.restore(newest, model, torch.optim.AdamW(model.parameters()))
    for name, value in load(str(before)).state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_backend_that_goes_away_leaves_a_checkpoint(toy: Path, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", 2
    options = 'grading.options={together=true, limits={retries=0, reuse="never"}}'
    at_once = "grading.patience=0"
    made = config(toy, run, "run.steps=50", "grading.remember=0", options, at_once)
    with pytest.raises(ProviderUnavailableError, match=r"rollouts .*: .*injected") as error:
        train(made, Failing(before=2 + steps * 4 * made.rollout.group_size))
    assert error.value.__notes__ == ["a checkpoint was written after step 2"]
    assert len(metrics(run)) == steps
    assert "infra_error" in [row["outcome"] for row in records.read(run, steps + 1)]
    newest, _ = checkpoint.newest(run)
    assert newest is not None
    assert newest.name == "step-000002"


def test_a_run_with_another_configuration_is_not_continued(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(config(toy, run, "run.steps=1", "run.export_every=1")) == 0
    assert (run / "export-000001" / "config.json").exists()
    saved = (run / "config.json").read_text()
    for change in ("run.seed=7", "objective.loss=grpo", "optimizer.weight_decay=0.1"):
        name = change.partition("=")[0]
        with pytest.raises(ConfigurationError, match=rf"begun otherwise: {name}=.*\(was "):
            train(config(toy, run, "run.steps=2", change))
        assert (run / "config.json").read_text() == saved
    moved = tmp_path / "moved.jsonl"
    moved.write_text((toy / "train.jsonl").read_text())
    allowed = ["run.steps=2", "rollout.deadline=200", "engine.max_batch=9", "optimizer.lr=1e-3"]
    allowed += [f"data.train={moved}"]
    assert train(config(toy, run, *allowed)) == 0
    assert [row["lr"] for row in metrics(run)] == [6e-4, 1e-3]
    first, *others = moved.read_text().splitlines(keepends=True)
    moved.write_text("".join([*others, first]))
    with pytest.raises(
        ConfigurationError, match=r"begun with other rows than those of data.train="
    ):
        train(config(toy, run, *allowed, "run.steps=3"))
    assert len(metrics(run)) == 2
