"""A training step: packed as unpacked, on two ranks as on one, and it learns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.training import TrainingSample, train_step
from tests.grpo.stand_ins import nursery
from tests.grpo.tiny import samples, save_model

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_packed_row_gives_what_its_sequences_give_alone(folder: str) -> None:
    model = load(folder)
    batch = samples(5)
    ids = [sample.prompt + sample.completion for sample in batch]
    starts = [len(sample.prompt) for sample in batch]
    packed, entropies = logp_of(model, Sequences(ids, starts))
    alone = [logp_of(model, Sequences([i], [s])) for i, s in zip(ids, starts, strict=True)]
    torch.testing.assert_close(packed, torch.cat([logp for logp, _ in alone]), atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies, torch.cat([e for _, e in alone]), atol=1e-5, rtol=0)


def test_equal_sequences_are_computed_once_and_count_as_often_as_they_are(folder: str) -> None:
    batch = samples(4)
    twice = [
        replace(sample, advantage=sample.advantage + more)
        for more in (-1.0, 1.0)
        for sample in batch
    ]
    computed: list[int] = []
    weights = list[torch.Tensor]()
    reports = []
    for given in (batch, twice):
        model = load(folder)
        model.register_forward_pre_hook(
            lambda _, __, asked: computed.append(asked["input_ids"].numel()), with_kwargs=True
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reports.append(
            train_step(model, optimizer, given, Objective("grpo"), max_tokens_per_row=64)
        )
        weights.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    once, both = reports
    assert sum(computed) == 2 * sum(map(len, batch))
    assert both.tokens == 2 * once.tokens
    assert both.loss == pytest.approx(once.loss, abs=1e-5)
    assert both.entropy == pytest.approx(once.entropy, abs=1e-5)
    assert both.grad_norm == pytest.approx(once.grad_norm, abs=1e-5)
    torch.testing.assert_close(*weights, atol=1e-6, rtol=0)


def test_log_probabilities_are_those_of_the_plain_model(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids, start = [5, 6, 7, 8, 9], 2
    logits = model(torch.tensor([ids])).logits[0] / 0.7
    expected = torch.log_softmax(logits, -1)[[1, 2, 3], ids[start:]]
    found, _ = logp_of(load(folder), Sequences([ids], [start]), temperature=0.7)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_bfloat16_computes_so_and_keeps_weights_in_float32(folder: str) -> None:
    batch, moved, norms = samples(6), list[torch.Tensor](), list[float]()
    for autocast in (False, True):
        model = load(folder)
        before = torch.cat([each.detach().flatten() for each in model.parameters()])
        report = train_step(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            batch,
            Objective(),
            max_tokens_per_row=64,
            max_grad_norm=1e9,
            autocast=autocast,
        )
        assert {each.dtype for each in model.parameters()} == {torch.float32}
        moved.append(torch.cat([each.detach().flatten() for each in model.parameters()]) - before)
        norms.append(report.grad_norm)
    assert norms[0] != norms[1] == pytest.approx(norms[0], rel=0.05)
    assert torch.cosine_similarity(moved[0], moved[1], 0) > 0.99


def test_the_size_of_the_pieces_changes_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = samples(5)
    row = Sequences(
        [sample.prompt + sample.completion for sample in batch],
        [len(sample.prompt) for sample in batch],
    )

    def computed() -> list[torch.Tensor]:
        model = load(folder)
        logp, entropy = logp_of(model, row)
        assert len(logp) > 3 * 5
        (logp * torch.arange(len(logp))).sum().backward()
        return [logp, entropy, *(parameter.grad for parameter in model.parameters())]

    whole = computed()
    monkeypatch.setattr("sandboxkit.integrations.grpo.model._PIECE", 5)
    torch.testing.assert_close(computed(), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "tied"), [("dapo", False), ("gspo", True)])
def test_two_ranks_train_as_one_does(tmp_path: Path, kind: str, tied: bool) -> None:
    folder = save_model(tmp_path, tied=tied)
    with nursery() as started:
        alone, together = (
            [json.loads(line) for line in started.train(folder, kind, "4", ranks=ranks)]
            for ranks in (1, 2)
        )
    assert len(alone) == len(together) == 4
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, abs=1e-5)


def test_the_mean_over_micro_batches_is_over_those_of_all_ranks(folder: str) -> None:
    """Of two, with a row of as many tokens on each: then it is the mean over all tokens."""
    batch = [
        TrainingSample((2, 3), (number, 5, 6), (True,) * 3, (-3.0,) * 3, 0.1 * number)
        for number in range(4, 8)
    ]
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        found = []
        for kind in ("bnpo", "dapo"):
            model = load(folder)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            objective = Objective(kind)
            found.append(train_step(model, optimizer, batch, objective, max_tokens_per_row=64))
    finally:
        dist.destroy_process_group()
    assert found[0].loss == pytest.approx(found[1].loss)
    assert found[0].grad_norm == pytest.approx(found[1].grad_norm)


def test_good_completions_get_likelier_and_bad_ones_less(folder: str) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def sample(completion: tuple[int, ...], advantage: float) -> TrainingSample:
        ids = Sequences([(2, 3, *completion)], [2])
        with torch.no_grad():
            logp, _ = logp_of(model, ids)
        size = len(completion)
        return TrainingSample((2, 3), completion, (True,) * size, tuple(logp.tolist()), advantage)

    def total(completion: tuple[int, ...]) -> float:
        return sum(sample(completion, 0).sampler_logp)

    good, bad = (4, 5, 6), (7, 8)
    before = total(good), total(bad)
    for _ in range(5):
        batch = [sample(good, 1.0), sample(bad, -1.0)]
        report = train_step(model, optimizer, batch, Objective(), max_tokens_per_row=16)
        assert report.off_policy == pytest.approx(0, abs=1e-5)
        assert report.weight == pytest.approx(1, abs=1e-5)
    assert total(good) > before[0] + 1
    assert total(bad) < before[1] - 0.5


def test_a_tools_tokens_leave_the_model_as_it_is(folder: str) -> None:
    model, other = load(folder), load(folder)
    for subject, ending in ((model, 9), (other, 10)):
        batch = [TrainingSample((2, 3), (4, ending), (True, False), (-3.0, 0.0), 1.0)]
        train_step(
            subject,
            torch.optim.SGD(subject.parameters(), lr=0.1),
            batch,
            Objective(),
            max_tokens_per_row=8,
        )
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_cannot_be_trained_on_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mask of 1 and 2 log-prob"):
        TrainingSample((2,), (3, 4), (True,), (0.0, 0.0), 1.0)
    with pytest.raises(ConfigurationError, match="a prompt token"):
        TrainingSample((), (3,), (True,), (0.0,), 1.0)
    model = load(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tool_only = [TrainingSample((2,), (3,), (False,), (0.0,), 1.0)]
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        train_step(model, optimizer, tool_only, Objective(), max_tokens_per_row=8)
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load(str(tmp_path / "nothing"))


@pytest.mark.parametrize("family", ["mamba", "qwen3_5_text"])
def test_a_model_whose_layers_would_leak_is_refused(tmp_path: Path, family: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(ConfigurationError, match=f"is a {family}"):
        load(str(tmp_path))
