"""Servers that die under a run: it goes on with those that are left, and counts nothing twice."""

import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toys import compose

from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.config import EngineConfig as Settings
from sandboxkit.integrations.grpo.engines import EngineError, SampleRequest
from sandboxkit.integrations.grpo.engines.vllm_server import VLLMServers
from sandboxkit.integrations.grpo.model import load
from sandboxkit.integrations.grpo.program import main
from tests.grpo import serving, stand_ins, tiny
from tests.grpo.stand_ins import Served, free_port
from tests.grpo.test_program import metrics, no_sandboxes, start

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

VOCABULARY, STOP = len(compose.WORDS), 1
CLOSE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    serving.write_model(folder)
    return folder


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[list[Served]]:
    with stand_ins.serving(2, folder, STOP) as made:
        yield made


def settings(folder: Path, run: Path, servers: list[Served], *more: str) -> list[str]:
    urls = ", ".join(f'"{each.url}"' for each in servers)
    given = ["engine.kind=vllm_server", f"engine.urls=[{urls}]", "engine.timeout=30"]
    given += ["buffer.drop_equal=false", "run.checkpoint_every=100"]
    return serving.settings(folder, run, *given, *more)


def connect(folder: Path, urls: Sequence[str], patience: float = 60.0) -> VLLMServers:
    limits: dict[str, Any] = {"max_model_tokens": 64, "timeout": 30.0, "patience": patience}
    given, run = Settings(kind="vllm_server", urls=urls, **limits), f"run-{secrets.token_hex(4)}"
    return VLLMServers(given, model=str(folder), vocabulary=VOCABULARY, stop=[STOP], run=run)


def test_a_lost_server_is_done_without(folder: Path, servers: list[Served]) -> None:
    urls = [each.url for each in servers]
    engine = connect(folder, urls)
    model = tiny.changed(folder, 0, 0.02)
    tiny.update(engine, model, 3)
    # Turns go where the one before them was.
    turns = [SampleRequest((9, 3, 11), 14, 1.0, seed, urls[seed % 2]) for seed in range(8)]
    assert [done.server for done in tiny.ask(engine, *turns)] == [each.server for each in turns]
    assert tiny.score_difference(model, engine, (9, 3, 11, 4, 20, 7)) <= CLOSE
    spread = tiny.ask(engine, *(replace(each, server="") for each in turns))
    assert sorted(done.server for done in spread) == sorted(urls * 4)

    # One that hangs, with turns in flight, and is killed: each is answered once, by the other.
    servers[0].signal(signal.SIGSTOP)
    threading.Timer(1.0, servers[0].kill).start()
    answers = tiny.ask(engine, *turns)
    assert {done.server for done in answers} == {urls[1]}
    for request, done in zip(turns, answers, strict=True):
        assert tiny.difference(model, request, done) <= CLOSE

    # It answers again, without the run's weights, and is not sampled from.
    servers[0].start()
    tiny.update(engine, model, 4)
    for done in tiny.ask(engine, *turns):
        assert (done.server, done.version) == (urls[1], 4)
    engine.close()


def test_a_server_that_was_restarted_unnoticed_is_lost(folder: Path, servers: list[Served]) -> None:
    engine = connect(folder, [each.url for each in servers])
    tiny.update(engine, load(str(folder)), 3)
    servers[1].kill()
    servers[1].start()
    (done,) = tiny.ask(engine, SampleRequest((9, 3, 11), 14, 1.0, 5, servers[1].url))
    assert done.server == servers[0].url
    engine.close()


def test_two_ranks_go_on_with_one_of_two_servers(
    folder: Path, tmp_path: Path, servers: list[Served]
) -> None:
    """Not one log-probability is of other weights than the trainer's.

    SIGTERM is sent to the whole process group, as a scheduler does it: the ranks get it twice.
    """
    run = tmp_path / f"run-{secrets.token_hex(4)}"
    given = settings(folder, run, servers, "run.steps=1000")
    output, since = "", 0
    with start(given, tmp_path, ranks=2, by="sandboxkit.integrations.grpo.launch") as process:
        assert process.stdout is not None
        for line in process.stdout:
            output += line
            if line.startswith("step 2/"):
                servers[0].kill()
            if line.startswith("step ") and "1 of 2 servers are left" in output:
                since += 1
                if since == 3:
                    os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(200) == 128 + signal.SIGTERM, output
    assert "1 of 2 servers are left" in output
    assert "stopped by SIGTERM" in output
    rows = metrics(run)
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["rollouts"] for row in rows} == {4 * 8}
    assert {row["infra_failed_rate"] for row in rows} == {0}
    assert any(row["grad_norm"] > 0 for row in rows)
    assert all(row["off_policy"] <= CLOSE for row in rows)
    assert checkpoint.newest(run) == (run / "checkpoints" / f"step-{len(rows):06}", [])
    assert no_sandboxes(run)
    servers[0].start()


def test_without_any_server_a_run_ends_with_one_message_and_goes_on_later(
    folder: Path, tmp_path: Path, servers: list[Served], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / f"run-{secrets.token_hex(4)}"

    def program(*more: str) -> int:
        given = settings(folder, run, servers, *more)
        return main([os.devnull, *(f"--set={each}" for each in given)])

    def kill_both() -> None:
        while len(metrics(run)) < 2 and not over.wait(0.05):
            pass
        for each in servers:
            each.kill()

    over = threading.Event()
    killer = threading.Thread(target=kill_both)
    killer.start()
    try:
        assert program("run.steps=1000") == 125
    finally:
        over.set()
        killer.join()
    output = capsys.readouterr().err
    assert output.count("error: ") == 1, output
    assert "Traceback" not in output
    assert "error: EngineError: no vLLM server is left (vLLM at " in output
    done = len(metrics(run))
    assert f"a checkpoint was written after step {done}" in output
    assert no_sandboxes(run)
    for each in servers:
        each.start()
    assert program(f"run.steps={done + 1}") == 0
    assert metrics(run)[-1]["off_policy"] <= CLOSE


def test_servers_that_are_not_there_are_all_named(folder: Path) -> None:
    urls = tuple(f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with pytest.raises(EngineError, match=f"{urls[0]} cannot.*{urls[1]} cannot"):
        connect(folder, urls, patience=0.5)


def test_a_server_that_is_still_starting_is_waited_for(folder: Path, servers: list[Served]) -> None:
    servers[0].kill()
    later = threading.Timer(0.5, servers[0].start, kwargs={"wait": False})
    later.start()
    engine = connect(folder, [servers[0].url])
    later.join()
    assert tiny.ask(engine, SampleRequest((5,), 2, 1.0, 0))[0].server == servers[0].url
    engine.close()
