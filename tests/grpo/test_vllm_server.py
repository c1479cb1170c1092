"""vLLM as a server: weights in files, two ranks, and what goes wrong."""

import asyncio
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.engines import Completion, EngineError, SampleRequest
from sandboxkit.integrations.grpo.engines.start import start as start_engine
from sandboxkit.integrations.grpo.engines.vllm_server import VLLMServers
from tests.grpo.serving import Server, needs_vllm, serve, settings, write_model
from tests.grpo.test_program import finish, metrics, no_sandboxes, start
from tests.grpo.tiny import ask, changed, difference, score_difference, update

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(500)]

ENGINES = "sandboxkit.integrations.grpo.engines"
VOCABULARY = 22
REQUESTS = [
    SampleRequest((9, 3, 11), 14, 1.0, 5),
    SampleRequest((9, 3, 12, 3), 3, 0.7, 6),
    SampleRequest((9,), 12, 1.3, 7),
    SampleRequest((9, 3, 13), 6, 0.0, 8),
]
LONG = SampleRequest((9, 3), 60, 1.0, 9)
CLOSE = 1e-4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    write_model(folder / "model")
    with serve(folder / "model", folder) as server:
        yield server


def connect(server: Server, **more: object) -> VLLMServers:
    given = replace(
        Settings(kind="vllm_server", urls=(server.url,), max_model_tokens=64, timeout=60.0),
        **more,  # type: ignore[arg-type] # fields of Settings
    )
    return VLLMServers(given, model=str(server.folder), vocabulary=VOCABULARY, stop=[1], run="run")


@needs_vllm
def test_weights_are_exact_after_each_update(server: Server, tmp_path: Path) -> None:
    engine = connect(server, folder=str(tmp_path))
    for version in (3, 4):
        model = changed(server.folder, version, 0.02)
        update(engine, model, version)
        for request, done in zip(REQUESTS, ask(engine, *REQUESTS), strict=True):
            assert 1 <= len(done.ids) <= request.max_tokens
            assert difference(model, request, done) <= CLOSE
            assert done.version == version
        ids = tuple(7 * number % 20 + 2 for number in range(63))
        assert score_difference(model, engine, ids) <= CLOSE
    engine.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@needs_vllm
def test_a_server_takes_an_update_after_one_that_broke_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{ENGINES}.weight_files._FILE_BYTES", 200_000)
    model = changed(server.folder, 5, 0.02)

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        for number, each in enumerate(model.state_dict().items()):
            if number == 12:
                raise OSError("the network is gone")
            yield each

    engine = connect(server)
    engine.pause()
    with pytest.raises(OSError, match="is gone"):
        engine.update_weights(broken(), 5)
    engine.close()
    after = connect(server)  # as the run does that goes on
    update(after, model, 6)
    for request, done in zip(REQUESTS, ask(after, *REQUESTS), strict=True):
        assert difference(model, request, done) <= CLOSE
    after.close()


@needs_vllm
def test_an_update_leaves_requests_in_flight(server: Server) -> None:
    engine = connect(server)
    model = changed(server.folder, 7, 0.02)

    async def run() -> list[Completion]:
        await asyncio.to_thread(engine.pause)
        flying = [asyncio.ensure_future(engine.generate(LONG)) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in flying), "paused it samples nothing"
        await asyncio.to_thread(engine.update_weights, model.state_dict().items(), 7)
        await asyncio.to_thread(engine.resume)
        return await asyncio.wait_for(asyncio.gather(*flying), 60)

    for done in asyncio.run(run()):
        assert difference(model, LONG, done) <= CLOSE
        assert done.version == 7
    engine.close()


@needs_vllm
def test_a_server_of_something_else_is_refused(server: Server) -> None:
    given = Settings(kind="vllm_server", urls=(server.url,), max_model_tokens=64)

    def refused(match: str, model: str, vocabulary: int, **more: object) -> None:
        wrong = replace(given, **more)  # type: ignore[arg-type] # fields of Settings
        with pytest.raises(ConfigurationError, match=match):
            VLLMServers(wrong, model=model, vocabulary=vocabulary, stop=[1], run="run")

    served = str(server.folder)
    refused(rf"{server.url} serves .*the run trains 'other'", "other", VOCABULARY)
    refused("another vocabulary than the 21 tokens", served, VOCABULARY - 1)
    refused("another vocabulary than the 23 tokens", served, VOCABULARY + 1)
    refused("takes 64 tokens.*--max-model-len 65", served, VOCABULARY, max_model_tokens=65)


@needs_vllm
@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_two_ranks_train_with_a_server(server: Server, tmp_path: Path, lag: int) -> None:
    more = ["run.steps=4", "engine.kind=vllm_server", f'engine.urls=["{server.url}"]']
    run = tmp_path / f"run-{secrets.token_hex(4)}"
    given = settings(server.folder, run, *more, f"buffer.lag={lag}")
    finish(start(given, tmp_path, ranks=2))
    rows = metrics(run)
    assert len(rows) == 4
    assert max(row["staleness"] for row in rows if row["groups"]) <= lag
    if not lag:
        assert all(row["off_policy"] <= CLOSE for row in rows if row["groups"])
    assert no_sandboxes(run)


def test_vllm_in_the_training_process_is_for_one_rank_and_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(None, settings(tmp_path, tmp_path / "run", "engine.kind=vllm"))
    with pytest.raises(ConfigurationError, match="for one rank and there are 2"):
        start_engine(config, stop=[1], vocabulary=VOCABULARY, ranks=2)
    for name in {"vllm", *(name for name in sys.modules if name.startswith("vllm."))}:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"{ENGINES}.vllm", raising=False)
    with pytest.raises(ConfigurationError, match=r"needs vLLM \(.*run scripts/vllm-cpu.sh"):
        start_engine(config, stop=[1], vocabulary=VOCABULARY, ranks=1)


def test_a_server_that_says_nothing_is_given_up_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        given = Settings(kind="vllm_server", urls=(url,), timeout=0.5, patience=0.5)
        with pytest.raises(EngineError, match=r"did not answer /v1/models within engine.timeout"):
            VLLMServers(given, model="m", vocabulary=8, stop=[1], run="run")
        assert time.monotonic() - begun < 5
