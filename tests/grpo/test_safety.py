"""A run that can be left alone: nothing that is not a number reaches the weights, and whatever ends
it leaves a checkpoint."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import compose
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
from sandboxkit.integrations.grpo.training import StepReport, TrainingSample, train_step
from tests.grpo import tiny
from tests.grpo.test_program import Failing, metrics

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

NEEDED = ["model.name=m", "data.train=rows.jsonl"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    compose.write(folder, right=0.2, singles_only=True)
    return folder


def config(folder: Path, run: Path, *more: str) -> Config:
    few = ["rollout.prompts_per_step=4", "run.checkpoint_every=100"]
    rows = folder / "train.jsonl"
    return read(None, tiny.settings(folder / "model", rows, run, *few, *more))


def step(
    model_folder: str,
    batch: Sequence[TrainingSample],
    objective: Objective,
    *,
    off_policy: bool = False,
) -> tuple[dict[str, torch.Tensor], StepReport]:
    """The weights after one step from the same start, and its report."""
    model = load(model_folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = train_step(
        model, optimizer, batch, objective, max_tokens_per_row=24, off_policy=off_policy
    )
    return {name: value.clone() for name, value in model.state_dict().items()}, report


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["advantage", "sampler"])
def test_a_step_that_is_not_finite_changes_nothing(
    model_folder: str, where: str, value: float
) -> None:
    batch = tiny.samples(4)
    first = batch[0]
    logp = (-value,) * len(first.completion) if where == "sampler" else first.sampler_logp
    advantage = value if where == "advantage" else 1.0
    batch[0] = TrainingSample(first.prompt, first.completion, first.mask, logp, advantage)
    objective = Objective(weighting="token_mask", weight_cap=1e30)
    weights, report = step(model_folder, batch, objective)
    assert report.skipped
    assert same(weights, load(model_folder).state_dict())
    _, report = step(model_folder, tiny.samples(4), objective)
    assert not report.skipped


def test_numbers_that_are_none_are_refused() -> None:
    for setting in ("objective.beta=nan", "optimizer.lr=inf", "advantage.center=nan"):
        with pytest.raises(ConfigurationError, match=f"{setting.partition('=')[0]}="):
            read(None, [*NEEDED, setting])
    with pytest.raises(ConfigurationError, match="beta=nan"):
        Objective(beta=math.nan)
    with pytest.raises(ConfigurationError, match=r"warmup=100 is more than run\.steps=1"):
        read(None, [*NEEDED, "run.steps=1", "optimizer.warmup=100"])


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


# The options of the loss, off policy: each has to change what is learned. The samples' sampler is
# far from the model, so that ratios are far from 1.
ACTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"loss": "dapo", "clip_high": 1e-6, "clip_low": 1e-6}, {"loss": "dapo"}),
    ({"loss": "dapo", "clip_high": 2.0}, {"loss": "dapo"}),
    ({"loss": "dapo", "clip_low": 0.9}, {"loss": "dapo"}),
    ({"loss": "cispo"}, {"loss": "dapo"}),
    ({"loss": "cispo", "clip_high": 0.01}, {"loss": "cispo"}),
    ({"loss": "gspo"}, {"loss": "grpo"}),
    ({"loss": "gspo", "clip_high": 3e-4, "clip_low": 3e-4}, {"loss": "gspo"}),
    ({"weighting": "token_mask", "weight_cap": 1.05}, {}),
    ({"weighting": "token_mask", "weight_cap": 9.0, "weight_floor": 0.95}, {}),
    ({"weighting": "sequence_mask", "weight_cap": 1.05}, {"weighting": "token_mask", "weight_cap": 1.05}),
    ({"loss": "bnpo"}, {"loss": "grpo"}),
    ({"loss": "dr_grpo", "max_completion_tokens": 12}, {"loss": "dapo"}),
]  # fmt: skip


@pytest.mark.parametrize(("option", "against"), ACTS)
def test_each_option_acts_off_policy(
    model_folder: str, option: dict[str, Any], against: dict[str, Any]
) -> None:
    batch = [
        dataclasses.replace(
            each,
            sampler_logp=tuple(value + number % 4 / 4 for value in each.sampler_logp),
            advantage=1.0 if number % 2 else -1.0,
        )
        for number, each in enumerate(tiny.samples(8))
    ]
    one, report = step(model_folder, batch, Objective(**option), off_policy=True)
    other, _ = step(model_folder, batch, Objective(**against), off_policy=True)
    assert not same(one, other)
    assert not report.skipped


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["objective.clip_high=0.5"], "clip_high=0.5: on policy the ratio is 1"),
        (["objective.clip_low=0.1"], "clip_low=0.1: on policy"),
        (["objective.loss=cispo"], "loss='cispo': on policy"),
        (["objective.loss=gspo"], "loss='gspo': on policy"),
        (["objective.weight_floor=0.5"], "weight_floor=0.5 does nothing with weighting=None"),
        (["buffer.lag=2", "objective.weighting=token_truncate"], "counts the sampler twice"),
        (["objective.epochs=2", "objective.weighting=sequence_truncate"], "counts the sampler"),
        (["objective.epochs=0"], "epochs=0: give 1 or more"),
        (["objective.old=trainer"], "old='trainer' does nothing with one update per batch"),
        (["optimizer.minibatch=-1"], "optimizer.minibatch=-1: give 0 or more"),
        (["engine.max_difference=-1"], "engine.max_difference=-1.0: give 0 or more"),
    ],
)
def test_options_that_do_nothing_are_refused(settings: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        read(None, [*NEEDED, *settings])


def test_clipping_acts_in_a_run_that_is_off_policy(folder: Path, tmp_path: Path) -> None:
    clips = "objective.clip_high=1e-4"
    low = "objective.clip_low=1e-4"
    assert (
        train(config(folder, tmp_path / "run", "run.steps=3", "objective.epochs=3", clips, low))
        == 0
    )
    rows = metrics(tmp_path / "run")
    assert all(row["clip_fraction"] > 0 for row in rows), "of the last of three epochs"
    assert {"truncated", "all_right", "all_wrong", "outcome/passed"} <= rows[0].keys()


def test_clipping_acts_between_the_updates_of_a_batch(folder: Path, tmp_path: Path) -> None:
    options = ["run.steps=2", "optimizer.minibatch=3", "objective.old=trainer"]
    clips = ["objective.clip_high=1e-4", "objective.clip_low=1e-4"]
    assert train(config(folder, tmp_path / "run", *options, *clips)) == 0
    rows = [row for row in metrics(tmp_path / "run") if row["groups"]]
    assert rows
    for row in rows:
        assert row["clip_fraction"] > 0
        # The weight is against the policy before the first update, which is the sampler's.
        assert row["weight"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("version", [0, 1])
def test_an_engine_with_other_weights_stops_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    whole = HFEngine.update_weights

    def doubled(self: HFEngine, weights: Weights, number: int) -> None:
        changed = ((name, 2 * value if "v_proj" in name else value) for name, value in weights)
        whole(self, changed if number == version else weights, number)

    monkeypatch.setattr(HFEngine, "update_weights", doubled)
    run = tmp_path / "run"
    with pytest.raises(EngineError, match=rf"the weights of step {version}, .* by the trainer"):
        train(config(folder, run, "run.steps=3"))
    assert metrics(run) == []


def test_fixed_tokens_that_an_engine_scores_otherwise_stop_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its completions have the right log-probabilities."""
    whole, asked = HFEngine.score, list[tuple[int, ...]]()

    async def shifted(self: HFEngine, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        asked.append(ids)
        return tuple(value - 0.01 for value in await whole(self, ids, server))

    monkeypatch.setattr(HFEngine, "score", shifted)
    with pytest.raises(EngineError, match=r"the weights of step 0, 62 tokens .* of 0.01 and more"):
        train(config(folder, tmp_path / "run", "run.steps=3"))
    (ids,) = asked
    assert len(ids) == 63, "one is left for the token that vLLM samples"
    assert 0 not in ids, "a special token"


def test_a_sampler_that_says_no_numbers_stops_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = HFEngine.generate

    async def broken(self: HFEngine, request: Any) -> Any:
        done = await whole(self, request)
        if request.seed < 4:  # the check after a hand-over
            return done
        return dataclasses.replace(done, logp=tuple(math.nan for _ in done.logp))

    run = tmp_path / "run"
    before = run / "export"
    assert train(config(folder, run, "run.steps=1")) == 0
    monkeypatch.setattr(HFEngine, "generate", broken)
    with pytest.raises(DivergedError, match=r"3 optimizer steps in a row .* log-probabilities"):
        train(config(folder, run, "run.steps=9"))
    assert [row["skipped"] for row in metrics(run)] == [False, True, True]
    newest, damaged = checkpoint.newest(run)
    assert newest is not None
    assert not damaged
    assert checkpoint.read(newest)["step"] == 3
    model = load(str(before))
    checkpoint.restore(newest, model, torch.optim.AdamW(model.parameters()))
    for name, value in load(str(before)).state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_backend_that_goes_away_leaves_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", 2
    options = 'grading.options={together=true, limits={retries=0, reuse="never"}}'
    at_once = "grading.patience=0"
    made = config(folder, run, "run.steps=50", "grading.remember=0", options, at_once)
    with pytest.raises(ProviderUnavailableError, match=r"rollouts .*: .*injected") as error:
        train(made, Failing(before=2 + steps * 4 * made.rollout.group_size))
    assert error.value.__notes__ == ["a checkpoint was written after step 2"]
    assert len(metrics(run)) == steps
    assert "infra_error" in [row["outcome"] for row in records.read(run, steps + 1)]
    newest, _ = checkpoint.newest(run)
    assert newest is not None
    assert newest.name == "step-000002"


def test_a_run_with_another_configuration_is_not_continued(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(config(folder, run, "run.steps=1", "run.export_every=1")) == 0
    assert (run / "export-000001" / "config.json").exists()
    saved = (run / "config.json").read_text()
    for change in ("run.seed=7", "objective.loss=grpo", "optimizer.weight_decay=0.1"):
        name = change.partition("=")[0]
        with pytest.raises(ConfigurationError, match=rf"begun otherwise: {name}=.*\(was "):
            train(config(folder, run, "run.steps=2", change))
        assert (run / "config.json").read_text() == saved
    moved = tmp_path / "moved.jsonl"
    moved.write_text((folder / "train.jsonl").read_text())
    allowed = ["run.steps=2", "rollout.deadline=200", "engine.max_batch=9", "optimizer.lr=1e-3"]
    allowed += [f"data.train={moved}"]
    assert train(config(folder, run, *allowed)) == 0
    assert [row["lr"] for row in metrics(run)] == [6e-4, 1e-3]
    first, *others = moved.read_text().splitlines(keepends=True)
    moved.write_text("".join([*others, first]))
    with pytest.raises(
        ConfigurationError, match=r"begun with other rows than those of data.train="
    ):
        train(config(folder, run, *allowed, "run.steps=3"))
    assert len(metrics(run)) == 2


def test_a_checkpoint_without_room_is_tried_again(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The place is taken by a file at first; the run goes on, says so, and has one at its end."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").write_text("")
    steps = 0

    def counted(*args: Any, **options: Any) -> StepReport:
        nonlocal steps
        steps += 1
        if steps == 3:
            (run / "checkpoints").unlink()
        return train_step(*args, **options)

    monkeypatch.setattr("sandboxkit.integrations.grpo.loop.train_step", counted)
    assert train(config(folder, run, "run.steps=4", "run.checkpoint_every=2")) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "could not be written" in line]
    assert len(told) == 1
    assert "step-000002" in told[0]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-000003",
        "step-000004",
    ]


def test_a_place_that_is_none_and_a_device_that_is_none(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"run.folder=.* cannot be made"):
        train(config(folder, tmp_path / "file" / "run"))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match=r"run.device='cuda': torch finds no GPU"):
            train(config(folder, tmp_path / "run", "run.device=cuda"))
