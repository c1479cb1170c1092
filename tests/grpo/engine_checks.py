"""Checks of every engine that samples in this process: a module has them by importing all, with its `engine`."""

import torch

from sandboxkit.integrations.grpo.engines import Engine, SampleRequest
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.model import load
from tests.grpo.tiny import VOCABULARY, ask, difference, score_difference

CLOSE = 1e-4
REQUESTS = [
    SampleRequest((2, 3), 8, 1.0, 5),
    SampleRequest((4, 5, 6, 7, 8), 3, 0.7, 6),
    SampleRequest((9,), 12, 1.3, 7),
    SampleRequest((2, 3, 4), 6, 0.0, 8),
]


def close(engine: Engine) -> float:
    return 1e-5 if isinstance(engine, HFEngine) else CLOSE


def test_log_probabilities_are_the_trainers(engine: Engine, folder: str) -> None:
    for request, done in zip(REQUESTS, ask(engine, *REQUESTS), strict=True):
        assert 1 <= len(done.ids) <= request.max_tokens
        assert difference(load(folder), request, done) <= close(engine)
        assert done.version == 0


def test_given_tokens_get_the_trainers_log_probabilities(engine: Engine, folder: str) -> None:
    ids = tuple(7 * number % 30 + 2 for number in range(63))
    assert score_difference(load(folder), engine, ids) <= close(engine)


def test_a_request_alone_gives_what_it_gives_among_others(engine: Engine) -> None:
    together = ask(engine, *REQUESTS)
    assert [ask(engine, request)[0].ids for request in REQUESTS] == [each.ids for each in together]


def test_samples_have_the_models_distribution(engine: Engine, folder: str) -> None:
    count = 4000
    done = ask(engine, *[SampleRequest((2, 3), 1, 1.0, seed) for seed in range(count)])
    found = torch.bincount(torch.tensor([each.ids[0] for each in done]), minlength=VOCABULARY)
    expected = torch.softmax(load(folder)(torch.tensor([[2, 3]])).logits[0, -1], -1)
    # 5 standard deviations of a share
    assert ((found / count - expected).abs() < 5 * (expected / count).sqrt()).all()
