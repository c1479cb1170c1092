"""A model small enough to train in a test, rollouts for it, and a run's settings."""

import asyncio
import functools
import random
import tomllib
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from sandboxkit.integrations.grpo.engines import Completion, Engine, SampleRequest
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.training import TrainingSample

VOCABULARY = 32
MODELS = tomllib.loads((Path(__file__).parent / "models.toml").read_text())


def save_model(folder: Path, head_dim: int = 16, *, tied: bool = False) -> str:
    """Write a randomly initialised model, always the same, and return where."""
    torch.manual_seed(0)
    shape = {**MODELS["tiny"], "head_dim": head_dim, "bos_token_id": None}
    config = Qwen3Config(**shape, tie_word_embeddings=tied)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def changed(folder: object, seed: int, distance: float = 0.3) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = load(str(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * distance)
    return model


def update(engine: Engine, model: torch.nn.Module, version: int) -> None:
    engine.pause()
    engine.update_weights(model.state_dict().items(), version)
    engine.resume()


def ask(engine: Engine, *requests: SampleRequest) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.wait_for(asyncio.gather(*map(engine.generate, requests)), 60)

    return asyncio.run(together())


def difference(model: torch.nn.Module, request: SampleRequest, done: Completion) -> float:
    sequence = Sequences([request.ids + done.ids], [len(request.ids)])
    expected, _ = logp_of(model, sequence, temperature=request.temperature or 1.0)
    return float((torch.tensor(done.logp) - expected.detach()).abs().max())


def score_difference(model: torch.nn.Module, engine: Engine, ids: tuple[int, ...]) -> float:
    """Return how far an engine's log-probabilities of given tokens are from the model's, at most."""
    found = asyncio.run(engine.score(ids, engine.servers()[0]))
    assert len(found) == len(ids) - 1
    expected, _ = logp_of(model, Sequences([ids], [1]))
    return float((torch.tensor(found) - expected.detach()).abs().max())


def samples(count: int, seed: int = 0) -> list[TrainingSample]:
    """Rollouts of unequal lengths, some with a tool's tokens in the middle."""
    numbers, made = random.Random(seed), list[TrainingSample]()
    drawn = functools.partial(numbers.randrange, 2, VOCABULARY)
    for index in range(count):
        size = numbers.randint(1, 12)
        mask = tuple(index % 3 != 0 or position % 4 != 3 for position in range(size))
        made.append(
            TrainingSample(
                prompt=tuple(drawn() for _ in range(numbers.randint(1, 8))),
                completion=tuple(drawn() for _ in range(size)),
                mask=mask,
                sampler_logp=tuple(-3.4 - numbers.random() if own else 0.0 for own in mask),
                advantage=numbers.uniform(-1, 1),
            )
        )
    return made


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and a chat template with turns for tools."""
    folder = Path(__file__).parent / "chat"
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return made


def settings(toy: Path, run: Path, *more: str) -> list[str]:
    """Of a run on the CPU, with the model and the rows of a toy and local sandboxes."""
    common = (Path(__file__).parent / "settings.txt").read_text().splitlines()
    own = [f"run.folder={run}", f"model.name={toy / 'model'}", f"data.train={toy / 'train.jsonl'}"]
    return [*own, *common, *more]
