"""Checkpoints survive kill -9, and a resumed run is the run that was never killed."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.errors import CheckpointError
from sandboxkit.integrations.grpo.model import load
from tests.grpo.tiny import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own checkpointing, of many kinds

STEPS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


def train(folder: str, run: Path, ranks: int, kill_after: int | None = None) -> list[str]:
    """Reports of a run of STEPS steps; killed, all of its processes, after some."""
    worker = ["-m", "tests.grpo.train_worker", folder, "dapo", str(STEPS), str(run)]
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc_per_node={ranks}",
        *worker,
    ]
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(
            [sys.executable, *(launcher if ranks > 1 else worker)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": temporary},
        ) as process,
    ):
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            if line.startswith("{"):
                lines.append(line)
            if len(lines) == kill_after:
                os.killpg(process.pid, signal.SIGKILL)
                break
        assert process.wait(120) == (0 if kill_after is None else -signal.SIGKILL)
    return lines


def test_a_killed_run_of_two_ranks_goes_on_as_if_nothing_had_happened(
    folder: str, tmp_path: Path
) -> None:
    whole = train(folder, tmp_path / "whole", 2)
    train(folder, tmp_path / "killed", 2, kill_after=3)
    resumed = train(folder, tmp_path / "killed", 2)
    assert 1 <= len(resumed) <= STEPS - 2, "it goes on from a checkpoint"
    assert resumed == whole[-len(resumed) :], "to the last digit"
    one = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "export")
    two = AutoModelForCausalLM.from_pretrained(tmp_path / "killed" / "export")
    for name, parameter in one.state_dict().items():
        assert torch.equal(parameter, two.state_dict()[name]), name


def test_only_the_newest_are_kept(folder: str, tmp_path: Path) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in (9, 10, 100):
        checkpoint.save(tmp_path, step, model, optimizer, {"seen": step}, keep=2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000010", "step-000100"]
    newest, damaged = checkpoint.newest(tmp_path)
    assert newest == tmp_path / "checkpoints" / "step-000100"
    assert not damaged
    assert checkpoint.read(newest)["seen"] == 100
    checkpoint.restore(newest, model, optimizer)


def test_a_checkpoint_that_was_not_finished_is_none(folder: str, tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])
    (tmp_path / "checkpoints" / ".step-000003").mkdir(parents=True)
    assert checkpoint.newest(tmp_path) == (None, [])
    model = load(folder)
    made = checkpoint.save(tmp_path, 3, model, torch.optim.AdamW(model.parameters()), {})
    assert checkpoint.newest(tmp_path) == (made, [])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("shards/__0_0.distcp", _cut, "shards/__0_0.distcp has .* bytes and not"),
        ("shards/__0_0.distcp", _flip, "has another content than was written"),
        ("shards/.metadata", Path.unlink, "No such file"),
        ("random.pt", _cut, "random.pt has"),
        ("run.json", _cut, "JSONDecodeError"),
    ],
)
def test_the_newest_whole_one_is_used_and_the_damaged_one_named(
    folder: str, tmp_path: Path, name: str, harm: Callable[[Path], None], said: str
) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    whole = checkpoint.save(tmp_path, 1, model, optimizer, {})
    harm(checkpoint.save(tmp_path, 2, model, optimizer, {}) / name)
    newest, damaged = checkpoint.newest(tmp_path)
    assert newest == whole
    (told,) = damaged
    assert "step-000002 is damaged" in told
    assert re.search(said, told)
    checkpoint.restore(whole, model, optimizer)
    # What is damaged takes no whole one's place among those that are kept.
    checkpoint.save(tmp_path, 2, model, optimizer, {}, keep=2)
    assert [each.name for each in sorted((tmp_path / "checkpoints").glob("step-*"))] == [
        "step-000001",
        "step-000002",
    ]


def test_without_room_the_ones_before_stay_as_they_were(folder: str, tmp_path: Path) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    whole = checkpoint.save(tmp_path, 1, model, optimizer, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # as a full disk: a write fails
    try:
        with pytest.raises(CheckpointError, match="step-000002 could not be written"):
            checkpoint.save(tmp_path, 2, model, optimizer, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [whole.name]
    assert checkpoint.newest(tmp_path) == (whole, [])


def test_another_number_of_ranks_goes_on(folder: str, tmp_path: Path) -> None:
    """From two ranks to one and back: the weights and moments are the same, whoever holds them."""
    whole = train(folder, tmp_path / "whole", 1)
    run = tmp_path / "run"
    train(folder, run, 2, kill_after=2)
    resumed = train(folder, run, 1)
    assert 1 <= len(resumed) <= STEPS - 1
    for one, other in zip(whole[-len(resumed) :], resumed, strict=True):
        assert json.loads(other)["loss"] == pytest.approx(json.loads(one)["loss"], abs=1e-5)
    shutil.rmtree(max((run / "checkpoints").glob("step-*")))
    again = train(folder, run, 2)
    assert [json.loads(line)["loss"] for line in again] == pytest.approx(
        [json.loads(line)["loss"] for line in resumed[-len(again) :]], abs=1e-5
    )
