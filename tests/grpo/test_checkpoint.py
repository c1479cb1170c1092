"""Checkpoints survive kill -9, and a resumed run is the run that was never killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo import checkpoint
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    folder: str, tmp_path: Path, ranks: int
) -> None:
    whole = train(folder, tmp_path / "whole", ranks)
    train(folder, tmp_path / "killed", ranks, kill_after=3)
    resumed = train(folder, tmp_path / "killed", ranks)
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
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert checkpoint.restore(newest, model, optimizer)["seen"] == 100


def test_a_checkpoint_that_was_not_finished_is_none(folder: str, tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "checkpoints" / ".step-000003").mkdir(parents=True)
    assert checkpoint.latest(tmp_path) is None
    model = load(folder)
    checkpoint.save(tmp_path, 3, model, torch.optim.AdamW(model.parameters()), {})
    assert checkpoint.latest(tmp_path) == tmp_path / "checkpoints" / "step-000003"


def test_another_number_of_ranks_is_refused(folder: str, tmp_path: Path) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    made = checkpoint.save(tmp_path, 1, model, optimizer, {})
    state = json.loads((made / "run.json").read_text())
    (made / "run.json").write_text(json.dumps({**state, "ranks": 8}))
    with pytest.raises(ConfigurationError, match="is of 8 ranks, this run has 1"):
        checkpoint.restore(made, model, optimizer)
