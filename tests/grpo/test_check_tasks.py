"""Before the first step the program checks tasks that have a reference, and says or raises what is wrong."""

import json
from pathlib import Path

import pytest
from toys import compose

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.trainer import train
from tests.grpo import tiny

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's model, and its data with a reference that is wrong for the first row."""
    folder = tmp_path_factory.mktemp("toy")
    compose.write(folder, right=0.2, singles_only=True)
    lines = (folder / "train.jsonl").read_text().splitlines()
    first = {**json.loads(lines[0]), "task_id": "first", "reference": "def wrong(): pass\n"}
    (folder / "train.jsonl").write_text("\n".join([json.dumps(first), *lines[1:], ""]))
    return folder


def config(folder: Path, run: Path, *more: str) -> Config:
    rows, model = folder / "train.jsonl", folder / "model"
    return read(None, tiny.settings(model, rows, run, "run.steps=1", *more))


def test_a_refused_task_is_reported_once_before_training(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(config(folder, tmp_path / "run")) == 0
    output = " ".join(capfd.readouterr().out.split())
    assert "warning: tasks checked before training: 1 task: 1 refused; first is refused" in output
    assert train(config(folder, tmp_path / "run", "run.steps=2")) == 0
    assert "tasks checked" not in capfd.readouterr().out


def test_a_refused_task_ends_the_run_where_it_is_to(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="first is refused"):
        train(config(folder, tmp_path / "run", "grading.check_tasks=raise"))


def test_the_check_can_be_turned_off(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(config(folder, tmp_path / "run", "grading.check_tasks=off")) == 0
    assert "tasks checked" not in capfd.readouterr().out
