"""The hand-over of weights, for many families: the names, and the check that the engine has them."""

import asyncio
import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo import hand_over, lora
from sandboxkit.integrations.grpo.config import Config, Data, EngineConfig, Model
from sandboxkit.integrations.grpo.engines import EngineError, SampleRequest
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.hand_over import fixed_tokens, handed, refuse_difference
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.training import TrainingSample, score
from tests.grpo.tiny import MODELS, VOCABULARY, ask, changed, save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own, of many kinds

DENSE = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2", "starcoder2")
EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "ernie4_5_moe")
HYBRIDS = ("qwen3_5_text", "qwen3_next", "lfm2")
PROMPT = (5, 6, 7, 8)


@pytest.fixture(params=(*DENSE, *EXPERTS, *HYBRIDS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    shape = dict(MODELS["family"])
    for name, families in (("experts", (*EXPERTS, "qwen3_next")), ("hybrid", HYBRIDS)):
        shape |= MODELS[name] if request.param in families else {}
    settings = AutoConfig.for_model(request.param, bos_token_id=None, **shape)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path)
    return tmp_path


def config(folder: Path, engine: EngineConfig) -> Config:
    return Config(model=Model(name=str(folder)), data=Data(train="rows"), engine=engine)


def test_weights_have_the_names_of_the_models_files(folder: Path) -> None:
    state = load(str(folder)).state_dict()
    written = load_file(folder / "model.safetensors")
    for model in (load(str(folder)), load(str(folder), empty=True)):
        found = dict(hand_over.in_checkpoint_names(model, state.items()))
        # Files leave out the head if it is tied to the embedding.
        assert found.keys() - written.keys() <= {"lm_head.weight"}
        for name, value in written.items():
            assert torch.equal(found[name], value), name


def test_adapters_of_every_layer_are_merged_into_it(folder: Path) -> None:
    model, plain = load(str(folder)), load(str(folder))
    lora.add(model, 4, 8.0, (), seed=0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(0, 0.1)
    weights = dict(lora.merged(model, model.state_dict().items()))
    assert weights.keys() == plain.state_dict().keys()
    row = Sequences([list(range(3, 20))], [4])
    before, trained = logp_of(plain, row)[0], logp_of(model, row)[0]
    plain.load_state_dict(weights)
    torch.testing.assert_close(logp_of(plain, row)[0], trained, atol=1e-5, rtol=0)
    assert (before - trained).abs().max() > 1e-3


def test_adapters_that_cannot_be_merged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"embed_tokens.* cannot be merged"):
        lora.add(load(save_model(tmp_path)), 4, 8.0, ["embed_tokens"], seed=0)


@contextlib.contextmanager
def checks(
    folder: Path, trained: Any, prompts: Sequence[tuple[int, ...]] = (PROMPT,) * 4
) -> Iterator[Any]:
    """An engine, and a function that refuses its log-probabilities where they are not the trained's.

    They are those of completions that it samples, or of given tokens.
    """
    engine = HFEngine(load(str(folder)), stop={1})

    def check(version: int, fixed: tuple[int, ...] = ()) -> None:
        if fixed:
            made = [(fixed[:1], fixed[1:], asyncio.run(engine.score(fixed)))]
        else:
            requests = [SampleRequest(ids, 16, 1.0, seed) for seed, ids in enumerate(prompts)]
            done = zip(prompts, ask(engine, *requests), strict=True)
            made = [(ids, each.ids, each.logp) for ids, each in done]
        samples = [TrainingSample(p, ids, (True,) * len(ids), logp, 0.0) for p, ids, logp in made]
        own = score(trained, samples, max_tokens_per_row=64)
        refuse_difference(samples, own, version, config(folder, EngineConfig()))

    try:
        yield engine, check
    finally:
        engine.close()


def test_after_a_hand_over_both_sides_compute_the_same(folder: Path) -> None:
    trained = changed(folder, 1, 0.2)
    with checks(folder, trained, [PROMPT[:n] for n in (4, 1, 3, 2)]) as (engine, check):
        with pytest.raises(EngineError, match=r"step 0, .* by the engine and of .* by the trainer"):
            check(0)
        engine.update_weights(handed(trained, config(folder, EngineConfig())), 1)
        check(1)


@pytest.mark.parametrize("wrong", ["embedding", "layer"])
def test_fixed_tokens_show_weights_that_a_sure_policy_hides(tmp_path: Path, wrong: str) -> None:
    sure, settings = load(save_model(tmp_path)), config(tmp_path, EngineConfig())
    with torch.no_grad():
        sure.lm_head.weight *= 2000  # each completion has the probability 1, by both sides
    other = copy.deepcopy(sure)
    with torch.no_grad():
        if wrong == "embedding":
            other.model.embed_tokens.weight[20:] *= 2
        else:
            other.model.layers[1].mlp.up_proj.weight *= 1.01
    vocabulary = Tokenizer(WordLevel({f"<{n}>": n for n in range(VOCABULARY)}))
    words = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<0>", eos_token="<1>")
    fixed = fixed_tokens(words, 48, seed=0)
    assert set(fixed) <= set(range(2, VOCABULARY))
    assert len(set(fixed)) > VOCABULARY / 2
    assert fixed == fixed_tokens(words, 48, seed=0) != fixed_tokens(words, 48, seed=1)
    with checks(tmp_path, sure) as (engine, check):
        engine.update_weights(handed(sure, settings), 1)
        check(1)
        check(1, fixed)
        engine.update_weights(handed(other, settings), 2)
        check(2)
        with pytest.raises(EngineError, match=r"step 2, 47 .* by the engine and of .* by the tr"):
            check(2, fixed)


@pytest.mark.parametrize(
    ("engine", "bound"),
    [
        (EngineConfig(), 0.001),
        (EngineConfig(dtype="bfloat16"), 0.2),
        (EngineConfig(dtype="bfloat16", max_difference=0.5), 0.5),
    ],
)
def test_a_difference_above_the_types_bound_is_refused(engine: EngineConfig, bound: float) -> None:
    given = [TrainingSample((5,), (6, 7), (True, True), (-1.0, -1.0), 0.0)]
    settings = config(Path("model"), engine)
    refuse_difference(given, [(-1.0, -1.0 - 1.8 * bound)], 3, settings)
    for wrong in (math.nan, math.inf, 2.2 * bound):
        said = f"step 3, 2 tokens have a mean log-probability of -1 by.*more than {bound}"
        with pytest.raises(EngineError, match=said):
            refuse_difference(given, [(-1.0, -1.0 - wrong)], 3, settings)
