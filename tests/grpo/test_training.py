"""A training step: packed as unpacked, on two ranks as on one, and it learns; packing loses nothing."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo import attention
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.packing import alike, pack, spread
from sandboxkit.integrations.grpo.training import StepReport, TrainingSample, score, train_step
from tests.grpo import tiny
from tests.grpo.stand_ins import nursery
from tests.grpo.tiny import samples, save_model

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def step(model: torch.nn.Module, batch: Any, kind: Any = "dapo", **more: Any) -> StepReport:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train_step(model, optimizer, batch, Objective(kind), max_tokens_per_row=64, **more)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def row_of(batch: list[TrainingSample]) -> Sequences:
    ids = [sample.prompt + sample.completion for sample in batch]
    return Sequences(ids, [len(sample.prompt) for sample in batch])


def computed(model: torch.nn.Module, rows: list[Sequences]) -> list[torch.Tensor]:
    """The log-probabilities, entropies and gradients of packed rows, of which each token has a weight of its own."""
    model.zero_grad()
    found = [logp_of(model, row) for row in rows]
    logp, entropies = (torch.cat(each) for each in zip(*found, strict=True))
    (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return [logp.detach(), entropies.detach(), torch.cat(gradients)]


def test_packing_and_pieces_change_nothing(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = load(folder), samples(5)
    alone = computed(model, [row_of([each]) for each in batch])
    torch.testing.assert_close(computed(model, [row_of(batch)]), alone, atol=1e-5, rtol=1e-5)
    assert len(alone[0]) > 3 * 5
    monkeypatch.setattr("sandboxkit.integrations.grpo.model._PIECE", 5)
    torch.testing.assert_close(computed(model, [row_of(batch)]), alone, atol=1e-5, rtol=1e-5)


def test_equal_sequences_are_computed_once_and_count_as_often_as_they_are(folder: str) -> None:
    batch = samples(4)
    twice = [replace(each, advantage=each.advantage + m) for m in (-1.0, 1.0) for each in batch]
    computed, weights, reports = list[int](), list[torch.Tensor](), list[StepReport]()
    for members in (batch, twice):
        model = load(folder)
        model.register_forward_pre_hook(
            lambda _, __, asked: computed.append(asked["input_ids"].numel()), with_kwargs=True
        )
        reports.append(step(model, members, "grpo"))
        weights.append(flat(model))
    once, both = reports
    assert sum(computed) == 2 * sum(map(len, batch))
    assert both.tokens == 2 * once.tokens
    for name in ("loss", "entropy", "grad_norm"):
        assert getattr(both, name) == pytest.approx(getattr(once, name), abs=1e-5)
    torch.testing.assert_close(*weights, atol=1e-6, rtol=0)


def test_log_probabilities_are_those_of_the_plain_model(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids, start = [5, 6, 7, 8, 9], 2
    logits = model(torch.tensor([ids])).logits[0] / 0.7
    expected = torch.log_softmax(logits, -1)[[1, 2, 3], ids[start:]]
    found, _ = logp_of(load(folder), Sequences([ids], [start]), temperature=0.7)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_bfloat16_computes_so_and_keeps_weights_in_float32(folder: str) -> None:
    moved, norms = list[torch.Tensor](), list[float]()
    for autocast in (False, True):
        model = load(folder)
        before = flat(model)
        norms.append(step(model, samples(6), max_grad_norm=1e9, autocast=autocast).grad_norm)
        assert {each.dtype for each in model.parameters()} == {torch.float32}
        moved.append(flat(model) - before)
    assert norms[0] != norms[1] == pytest.approx(norms[0], rel=0.05)
    assert torch.cosine_similarity(moved[0], moved[1], 0) > 0.99


@pytest.mark.parametrize(("kind", "tied"), [("dapo", False), ("gspo", True)])
def test_two_ranks_train_as_one_does(tmp_path: Path, kind: str, tied: bool) -> None:
    folder = save_model(tmp_path, tied=tied)
    with nursery() as started:
        reports = [started.train(folder, kind, "4", ranks=ranks) for ranks in (1, 2)]
        alone, together = ([json.loads(line) for line in each] for each in reports)
    assert len(alone) == len(together) == 4
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, abs=1e-5)


def test_the_mean_over_micro_batches_is_over_those_of_all_ranks(folder: str) -> None:
    """Of two, with a row of as many tokens on each: then it is the mean over all tokens."""
    own, logp = (True,) * 3, (-3.0,) * 3
    batch = [TrainingSample((2, 3), (n, 5, 6), own, logp, 0.1 * n) for n in range(4, 8)]
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        bnpo, dapo = (step(load(folder), batch, kind) for kind in ("bnpo", "dapo"))
    finally:
        dist.destroy_process_group()
    assert bnpo.loss == pytest.approx(dapo.loss)
    assert bnpo.grad_norm == pytest.approx(dapo.grad_norm)


def test_good_completions_get_likelier_and_bad_ones_less(folder: str) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def sample(completion: tuple[int, ...], advantage: float) -> TrainingSample:
        with torch.no_grad():
            logp, _ = logp_of(model, Sequences([(2, 3, *completion)], [2]))
        mask = (True,) * len(completion)
        return TrainingSample((2, 3), completion, mask, tuple(logp.tolist()), advantage)

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
    models = load(folder), load(folder)
    for model, ending in zip(models, (9, 10), strict=True):
        step(model, [TrainingSample((2, 3), (4, ending), (True, False), (-3.0, 0.0), 1.0)])
    assert torch.equal(flat(models[0]), flat(models[1]))


def test_what_cannot_be_trained_on_is_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mask of 1 and 2 log-prob"):
        TrainingSample((2,), (3, 4), (True,), (0.0, 0.0), 1.0)
    with pytest.raises(ConfigurationError, match="a prompt token"):
        TrainingSample((), (3,), (True,), (0.0,), 1.0)
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        step(load(folder), [TrainingSample((2,), (3,), (False,), (0.0,), 1.0)])
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load(str(tmp_path / "nothing"))


WINDOW = {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}
SHAPES = tiny.MODELS["family"], tiny.MODELS["family"] | tiny.MODELS["hybrid"]


@pytest.mark.parametrize(
    ("family", "shape", "longest"),
    [
        ("qwen3_5_text", SHAPES[1], 0),  # layers that carry a state
        ("nemotron", tiny.MODELS["nemotron"], 0),  # its layers do not hand on what is shared
        ("gemma2", SHAPES[0], 0),  # attention of its own
        ("qwen3", SHAPES[0] | WINDOW, 8),
    ],
)
def test_what_cannot_share_a_row_has_one_of_its_own(
    tmp_path: Path, family: str, shape: dict[str, Any], longest: int
) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, bos_token_id=None, **shape)
    plain = AutoModelForCausalLM.from_config(config)
    plain.save_pretrained(tmp_path)
    model, rows = load(str(tmp_path)), list[int]()
    assert attention.longest_packed(model) == longest
    bare = load(str(tmp_path), empty=True)
    assert attention.longest_packed(bare) == longest, "a rank that has no weights yet says the same"
    batch = [replace(each, prompt=each.prompt * 4) for each in samples(4)] + samples(4, seed=1)
    assert min(map(len, batch)) <= 8 < max(map(len, batch))
    model.register_forward_pre_hook(
        lambda _, __, asked: rows.append(asked["input_ids"].numel()), with_kwargs=True
    )
    own = score(model, batch, max_tokens_per_row=64)
    together = [len(each) for each in batch if len(each) <= longest]
    alone = [len(each) for each in batch if len(each) > longest]
    assert sorted(rows) == sorted([*alone, *([sum(together)] if together else [])])
    for each, found in zip(batch, own, strict=True):
        ids, start = torch.tensor([each.prompt + each.completion]), len(each.prompt)
        logp = plain(ids).logits[0, start - 1 : -1].log_softmax(-1)
        expected = logp.gather(-1, ids[0, start:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(found), expected, atol=1e-5, rtol=0)
    assert step(model, batch).grad_norm > 0


lengths = st.lists(st.integers(1, 50), max_size=60)


def sequences(*sizes: int) -> list[list[int]]:
    numbers = random.Random(0)
    return [[numbers.randrange(2, tiny.VOCABULARY) for _ in range(size)] for size in sizes]


@given(lengths, st.integers(1, 8))
def test_every_sequence_goes_to_one_rank_of_equal_ones(lengths: list[int], ranks: int) -> None:
    chosen = spread(lengths, ranks)
    assert len(chosen) == ranks
    assert sorted(index for rank in chosen for index in rank) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in rank) for rank in chosen]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(lengths, st.integers(50, 100))
def test_rows_keep_to_the_budget_and_lose_nothing(lengths: list[int], budget: int) -> None:
    rows = pack(lengths, budget, range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= budget for row in rows)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    half_empty = [row for row in rows if 2 * sum(lengths[index] for index in row) <= budget]
    assert len(half_empty) <= 1, "two of those would have fitted into one"


@pytest.mark.parametrize(
    ("sizes", "pairs"),
    [((20, 5, 2), 20 * 20 + 5 * 5 + 2 * 2), ((5, 7, 6), 3 * 7 * 7)],
    ids=["one after the other", "together"],
)
def test_attention_stays_within_the_sequences_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], pairs: int
) -> None:
    """Where its layers look at all that came before; gradients are those of one row for each."""
    tiny.save_model(tmp_path)
    model, asked = load(str(tmp_path)), list[int]()

    def counted(module: Any, query: torch.Tensor, *more: Any, **options: Any) -> Any:
        asked.append(query.shape[0] * query.shape[2] ** 2)
        return sdpa_attention_forward(module, query, *more, **options)

    monkeypatch.setattr(attention, "sdpa_attention_forward", counted)
    ids = sequences(*sizes)
    apart = computed(model, [Sequences([each], [1]) for each in ids])
    asked.clear()
    together = computed(model, [Sequences(ids, [1] * len(ids))])
    assert sum(asked) == 2 * pairs, "of two layers"
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    assert float(apart[2].abs().max()) > 0.1


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), max_size=40))
def test_sequences_of_a_prompt_are_together_in_the_budget(sizes: list[tuple[int, int]]) -> None:
    prompts = [(7,) * prompt for prompt, _ in sizes]
    units, costs = alike(prompts, [sum(size) for size in sizes], 30)
    assert sorted(index for unit in units for index in unit) == list(range(len(sizes)))
    for unit, cost in zip(units, costs, strict=True):
        (prompt,) = {sizes[index][0] for index in unit}
        assert cost == prompt + sum(sizes[index][1] for index in unit)
        assert cost <= 30


def test_a_prompt_that_is_computed_once_gives_the_same(tmp_path: Path) -> None:
    """Log-probabilities and gradient, with a prompt of one and completions of one token among them."""
    tiny.save_model(tmp_path)
    model = load(str(tmp_path)).double()
    prompts, completions = sequences(6, 3, 1, 8), sequences(4, 1, 7, 5, 2, 2, 1, 1, 1)
    groups = list(zip(prompts, [(0, 1, 2), (3,), (4, 5), (6, 7, 8)], strict=True))
    ids = [prompt + completions[which] for prompt, chosen in groups for which in chosen]
    starts = [len(prompt) for prompt, sizes in groups for _ in sizes]
    rows = [Sequences([each], [start]) for each, start in zip(ids, starts, strict=True)]
    seen: list[int] = []
    embeddings = model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _, given, __: seen.append(given[0].numel()))
    alone, separate = computed(model, rows), sum(seen)
    together, both = computed(model, [Sequences(ids, starts)]), sum(seen)
    hook.remove()
    assert 2 * separate - both == 2 * 6 + 1 * 1 + 2 * 8
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-6)
    assert float(alone[2].abs().max()) > 0.1
