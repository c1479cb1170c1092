"""The engine without vLLM: exact log-probabilities, its own random numbers, weights in flight."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.engines import Completion, SampleRequest
from sandboxkit.integrations.grpo.engines.hf import HFEngine, _drawn
from sandboxkit.integrations.grpo.engines.start import start
from sandboxkit.integrations.grpo.model import load
from tests.grpo.engine_checks import *  # noqa: F403 - pytest collects the checks
from tests.grpo.engine_checks import REQUESTS
from tests.grpo.tiny import VOCABULARY, ask, changed, difference

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def engine(folder: str) -> Iterator[HFEngine]:
    engine = HFEngine(load(folder), stop=[1])
    yield engine
    engine.close()


def test_what_is_equal_so_far_is_computed_once_and_what_has_ended_no_more(folder: str) -> None:
    model = load(folder)
    computed: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, given: computed.append(given["input_ids"].shape[0]), with_kwargs=True
    )
    engine = HFEngine(model, stop=[1])
    lengths = [1, 2, 6, 6, 6]
    asked = [SampleRequest((2, 3), size, 0.3, seed) for seed, size in enumerate(lengths)]
    asked += [SampleRequest((7, 8, 9), 3, 1.0, 9), asked[-1]]
    done = ask(engine, *asked)
    ended = [len(each.ids) for each in done]

    def different(step: int) -> int:
        going = zip(asked, done, strict=True)
        return len({(r.ids, each.ids[:step]) for r, each in going if len(each.ids) > step})

    assert computed == [different(step) for step in range(max(ended))]
    assert any(different(step) < sum(n > step for n in ended) for step in range(1, max(ended)))
    assert len({each.ids for each in done}) > 2
    assert [ask(engine, request)[0].ids for request in asked] == [each.ids for each in done]
    engine.close()


async def test_what_has_ended_is_handed_over_while_the_others_are_written(folder: str) -> None:
    model, step = load(folder), threading.Semaphore(0)
    engine = HFEngine(model, stop=[])

    def wait(_: object, __: object) -> None:
        assert step.acquire(timeout=30)

    model.register_forward_pre_hook(wait)

    asked = [SampleRequest((2, 3), size, 1.0, size) for size in (2, 4)]
    short, long = (asyncio.ensure_future(engine.generate(each)) for each in asked)
    step.release(2)
    assert len((await asyncio.wait_for(short, 30)).ids) == 2
    assert not long.done(), "its third token waits"
    step.release(2)
    assert len((await asyncio.wait_for(long, 30)).ids) == 4
    engine.close()


async def test_what_is_asked_for_while_it_is_busy_is_sampled_together(folder: str) -> None:
    """As the turns of many rollouts are, whose tools are done one after the other."""
    model, computed = load(folder), list[int]()
    begun, go_on = threading.Event(), threading.Event()

    def wait(_: object, __: object, given: dict[str, torch.Tensor]) -> None:
        computed.append(given["input_ids"].shape[0])
        begun.set()
        assert go_on.wait(30)

    model.register_forward_pre_hook(wait, with_kwargs=True)
    engine = HFEngine(model, stop=[], max_batch=3)

    asked = []
    for prompt in range(2, 8):
        request = SampleRequest((prompt,), 1, 1.0, 0)
        asked.append(asyncio.ensure_future(engine.generate(request)))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(begun.wait, 30)
    asked[1].cancel()
    go_on.set()
    done = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)
    assert [isinstance(each, Completion) for each in done] == [True, False, *[True] * 4]
    engine.close()
    assert computed == [1, 3, 1]


def test_a_draw_from_a_large_vocabulary_is_that_of_the_whole_sum() -> None:
    shares = torch.softmax(torch.randn(64, 1000, generator=torch.Generator().manual_seed(0)), -1)
    chances = torch.linspace(0, 1, 65, dtype=torch.float64)[:64, None]
    whole = shares.double().cumsum(-1)
    expected = torch.searchsorted(whole, chances * whole[:, -1:], right=True)
    assert torch.equal(_drawn(shares, chances), expected)


def test_a_stop_token_ends_a_completion_and_belongs_to_it(folder: str) -> None:
    every = HFEngine(load(folder), stop=range(VOCABULARY))
    assert [len(each.ids) for each in ask(every, *REQUESTS)] == [1] * len(REQUESTS)
    every.close()


def test_greedy_takes_the_likeliest(engine: HFEngine, folder: str) -> None:
    (done,) = ask(engine, SampleRequest((2, 3), 1, 0.0, 0))
    assert done.ids[0] == load(folder)(torch.tensor([[2, 3]])).logits[0, -1].argmax()


async def test_new_weights_act_in_flight_and_are_versioned(engine: HFEngine, folder: str) -> None:
    other = changed(folder, 0, 1.0)
    engine.pause()
    before = asyncio.ensure_future(engine.generate(REQUESTS[0]))
    await asyncio.sleep(0.05)  # it has begun, or begins later: paused it samples nothing
    assert not before.done()
    engine.update_weights(other.state_dict().items(), 1)
    engine.resume()
    flying, later = await before, await engine.generate(REQUESTS[0])
    assert later.version == 1
    assert difference(other, REQUESTS[0], later) <= 1e-4
    assert flying.ids == later.ids, "all its tokens came after the update"


def test_it_computes_in_the_dtype_that_is_configured(folder: str) -> None:
    settings = ["run.folder=run", f"model.name={folder}", "data.train=rows"]
    for dtype in ("float32", "bfloat16"):
        config = read(None, [*settings, f"engine.dtype={dtype}"])
        engine = start(config, stop=[1], vocabulary=VOCABULARY, ranks=1)
        assert isinstance(engine, HFEngine)
        (done,) = ask(engine, REQUESTS[0])
        distance = difference(load(folder), REQUESTS[0], done)
        assert (distance < 1e-5) is (dtype == "float32")
        assert distance < 0.1
        engine.close()


def test_weights_of_another_model_are_refused(engine: HFEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"'lm_head.weight' of shape \(2, 2\) is of shape"):
        engine.update_weights([("lm_head.weight", torch.zeros(2, 2))], 1)
    with pytest.raises(ConfigurationError, match="not there"):
        engine.update_weights([("nothing", torch.zeros(2))], 1)


async def test_closing_gives_up_what_is_in_flight(engine: HFEngine) -> None:
    flying = asyncio.ensure_future(engine.generate(SampleRequest((2,), 10_000, 1.0, 0)))
    await asyncio.sleep(0)
    await asyncio.to_thread(engine.close)
    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        await asyncio.wait_for(flying, 30)
