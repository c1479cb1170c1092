"""vLLM in this process: the trainer's log-probabilities, weights in flight, nothing left."""

import asyncio
import secrets
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from transformers import Qwen3MoeConfig

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations.grpo.config import EngineConfig
from sandboxkit.integrations.grpo.engines import Completion, EngineError, SampleRequest
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from tests.grpo.engine_checks import *  # noqa: F403 - pytest collects the checks
from tests.grpo.engine_checks import CLOSE, REQUESTS
from tests.grpo.serving import needs_vllm, settings, write_model
from tests.grpo.test_program import finish, metrics, no_sandboxes, start
from tests.grpo.tiny import ask, changed, difference, save_model, update

if TYPE_CHECKING:
    from sandboxkit.integrations.grpo.engines.vllm import VLLMEngine

pytestmark = [needs_vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())
LONG = SampleRequest((2, 3), 60, 1.0, 9)
SMALL = EngineConfig(kind="vllm", max_model_tokens=64, cache_gb=0.1, enforce_eager=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), head_dim=32)


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where torch keeps what it compiles, which it does not delete."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="module")
def engine(folder: str) -> Iterator["VLLMEngine"]:
    from sandboxkit.integrations.grpo.engines.vllm import VLLMEngine

    set_num_threads = torch.set_num_threads
    engine = VLLMEngine(replace(SMALL, max_batch=64), model=folder, stop=[1], run=folder)
    assert torch.set_num_threads is set_num_threads, "vLLM takes it away"
    yield engine
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        ask(engine, REQUESTS[0])
    assert not dist.is_initialized()
    assert "sampling" not in {each.name for each in threading.enumerate()}


def test_a_family_that_it_reloads_wrongly_on_cpus_is_refused(tmp_path: Path) -> None:
    from vllm.platforms import current_platform

    from sandboxkit.integrations.grpo.engines.vllm import VLLMEngine

    if not current_platform.is_cpu():
        pytest.skip("vLLM's build for GPUs")
    Qwen3MoeConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="is a qwen3_moe, whose weights vLLM reloads"):
        VLLMEngine(SMALL, model=str(tmp_path), stop=[1], run=str(tmp_path))


def test_prompts_of_more_than_one_pass_have_their_seeds(engine: "VLLMEngine", folder: str) -> None:
    prompts = [tuple((7 * n + m) % 30 + 2 for m in range(60)) for n in range(64)]
    requests = [SampleRequest(prompt, 4, 1.0, n) for n, prompt in enumerate(prompts)]  # 3840 tokens
    model = load(folder)
    for request, done in zip(requests, ask(engine, *requests), strict=True):
        assert difference(model, request, done) <= CLOSE


def test_weights_are_exact_after_each_update(engine: "VLLMEngine", folder: str) -> None:
    for version in (3, 4, 5):
        model = changed(folder, version)
        update(engine, model, version)
        for request, done in zip(REQUESTS, ask(engine, *REQUESTS), strict=True):
            assert difference(model, request, done) <= CLOSE
            assert done.version == version


def test_an_update_meets_a_request_between_two_tokens(engine: "VLLMEngine", folder: str) -> None:
    before, after = changed(folder, 10), changed(folder, 11)
    update(engine, before, 10)

    async def run() -> Completion:
        # Others keep the batch busy, so that the one is in flight when the update comes.
        for seconds in (0.02, 0.01, 0.005, 0.0):  # a busy machine may sleep until all are done
            flying = [asyncio.ensure_future(engine.generate(LONG)) for _ in range(8)]
            await asyncio.sleep(seconds)
            await asyncio.to_thread(engine.pause)
            if not flying[0].done():
                break
            engine.resume()
            await asyncio.gather(*flying)
        try:
            await asyncio.sleep(0.05)
            assert not flying[0].done(), "paused it samples nothing"
            await asyncio.to_thread(engine.update_weights, after.state_dict().items(), 11)
        finally:
            engine.resume()
        return (await asyncio.wait_for(asyncio.gather(*flying), 60))[0]

    done = asyncio.run(run())
    assert done.version in (10, 11)
    ids = LONG.ids + done.ids
    found = torch.tensor(done.logp)
    old, _ = logp_of(before, Sequences([ids], [2]))
    new, _ = logp_of(after, Sequences([ids], [2]))
    by_old, by_new = (found - old).abs() <= CLOSE, (found - new).abs() <= CLOSE
    turn = int(by_old.long().cumprod(0).sum())
    assert by_new[turn:].all(), "first the old weights', then the new ones'"
    assert (turn > 0) == (done.version == 10)
    assert turn < len(done.ids)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    # In a process of its own: vLLM cannot go on after a failed update.
    program = [sys.executable, "-c", PROGRAMS["other_weights"], save_model(tmp_path, head_dim=32)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert "give the engine the model that is trained" in done.stdout, done.stderr[-2000:]


def test_what_was_given_up_is_sampled_no_further(engine: "VLLMEngine") -> None:
    async def run() -> None:
        flying = asyncio.ensure_future(engine.generate(LONG))
        await asyncio.sleep(0)
        flying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flying
        # The next step drops it, and the engine goes on.
        done = await asyncio.wait_for(engine.generate(REQUESTS[0]), 30)
        assert done.ids

    asyncio.run(run())
    assert not engine._flying


def test_a_prompt_that_is_too_long_fails_alone(engine: "VLLMEngine") -> None:
    async def run() -> None:
        with pytest.raises(EngineError, match="refuses the request"):
            await engine.generate(SampleRequest((2,) * 100, 4, 1.0, 0))
        assert (await engine.generate(REQUESTS[0])).ids

    asyncio.run(run())


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_program_trains_with_it_and_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "weights").mkdir()
    more = ["run.steps=3", "engine.kind=vllm", "engine.cache_gb=0.1", "engine.enforce_eager=true"]
    if processes > 1:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
        more += [f"engine.tensor_parallel_size={processes}", f"engine.folder={tmp_path}/weights"]
    run = tmp_path / f"run-{secrets.token_hex(4)}"
    # The path of vLLM's socket may have 107 characters.
    with tempfile.TemporaryDirectory(dir=tmp_path.parents[2]) as short:
        finish(start(settings(tmp_path / "model", run, *more), Path(short)))
    rows = metrics(run)
    assert len(rows) == 3
    assert all(row["off_policy"] <= CLOSE for row in rows if row["groups"])
    assert list((tmp_path / "weights").iterdir()) == []
    assert no_sandboxes(run)
