"""The engine without vLLM: exact log-probabilities, its own random numbers, weights in flight."""

import asyncio
from collections.abc import Iterator

import pytest
import torch

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.engines import Completion, Request
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from tests.grpo.tiny import VOCABULARY, save_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

REQUESTS = [
    Request((2, 3), 8, 1.0, 5),
    Request((4, 5, 6, 7, 8), 3, 0.7, 6),
    Request((9,), 12, 1.3, 7),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(folder: str) -> Iterator[HFEngine]:
    engine = HFEngine(load(folder), stop=[1])
    yield engine
    engine.close()


def ask(engine: HFEngine, *requests: Request) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.wait_for(asyncio.gather(*map(engine.generate, requests)), 60)

    return asyncio.run(together())


def test_log_probabilities_are_the_trainers(engine: HFEngine, folder: str) -> None:
    for request, done in zip(REQUESTS, ask(engine, *REQUESTS), strict=True):
        assert 1 <= len(done.ids) <= request.max_tokens
        sequence = Sequences([request.ids + done.ids], [len(request.ids)])
        expected, _ = logp_of(load(folder), sequence, temperature=request.temperature)
        torch.testing.assert_close(torch.tensor(done.logp), expected.detach(), atol=1e-5, rtol=0)


def test_a_request_alone_gives_what_it_gives_among_others(engine: HFEngine) -> None:
    together = ask(engine, *REQUESTS)
    assert [ask(engine, request)[0].ids for request in REQUESTS] == [each.ids for each in together]


def test_what_is_drawn_has_the_models_distribution(engine: HFEngine, folder: str) -> None:
    done = ask(engine, *[Request((2, 3), 1, 1.0, seed) for seed in range(4000)])
    found = torch.bincount(torch.tensor([each.ids[0] for each in done]), minlength=VOCABULARY)
    expected = torch.softmax(load(folder)(torch.tensor([[2, 3]])).logits[0, -1], -1)
    # 5 standard deviations of a share of 4000
    assert ((found / 4000 - expected).abs() < 5 * (expected / 4000).sqrt()).all()


def test_a_stop_token_ends_a_completion_and_belongs_to_it(folder: str) -> None:
    every = HFEngine(load(folder), stop=range(VOCABULARY))
    assert [len(each.ids) for each in ask(every, *REQUESTS)] == [1, 1, 1]
    every.close()


def test_greedy_takes_the_likeliest(engine: HFEngine, folder: str) -> None:
    (done,) = ask(engine, Request((2, 3), 1, 0.0, 0))
    assert done.ids[0] == load(folder)(torch.tensor([[2, 3]])).logits[0, -1].argmax()


def test_new_weights_take_effect_in_flight_and_are_versioned(engine: HFEngine, folder: str) -> None:
    other = load(folder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))

    async def run() -> tuple[Completion, Completion]:
        engine.pause()
        before = asyncio.ensure_future(engine.generate(REQUESTS[0]))
        await asyncio.sleep(0.05)  # it has begun, or begins later: paused it samples nothing
        assert not before.done()
        engine.update_weights(other.state_dict().items(), 1)
        engine.resume()
        return await before, await engine.generate(REQUESTS[0])

    flying, later = asyncio.run(run())
    assert later.version == 1
    sequence = Sequences([REQUESTS[0].ids + later.ids], [2])
    expected, _ = logp_of(other, sequence)
    torch.testing.assert_close(torch.tensor(later.logp), expected.detach(), atol=1e-4, rtol=0)
    assert flying.ids == later.ids, "all its tokens came after the update"


def test_weights_of_another_model_are_refused(engine: HFEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"'lm_head.weight' of shape \(2, 2\) is of shape"):
        engine.update_weights([("lm_head.weight", torch.zeros(2, 2))], 1)
    with pytest.raises(ConfigurationError, match="not there"):
        engine.update_weights([("nothing", torch.zeros(2))], 1)


def test_closing_gives_up_what_is_in_flight(engine: HFEngine) -> None:
    async def run() -> None:
        flying = asyncio.ensure_future(engine.generate(Request((2,), 10_000, 1.0, 0)))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.close)
        with pytest.raises((RuntimeError, asyncio.CancelledError)):
            await asyncio.wait_for(flying, 30)

    asyncio.run(run())
