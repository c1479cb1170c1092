"""Checkpoints survive kill -9, and a resumed run is the run that was never killed."""

import json
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.errors import CheckpointError
from sandboxkit.integrations.grpo.model import load
from tests.grpo.stand_ins import Nursery, nursery

pytestmark = [pytest.mark.filterwarnings("ignore")]  # torch's own checkpointing, of many kinds

STEPS = 5


@pytest.fixture(scope="module")
def started() -> Iterator[Nursery]:
    with nursery() as process:
        yield process


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
    ("name", "harm", "expected"),
    [
        ("shards/__0_0.distcp", _cut, "shards/__0_0.distcp has .* bytes and not"),
        ("shards/__0_0.distcp", _flip, "has another content than was written"),
        ("shards/.metadata", Path.unlink, "No such file"),
        ("random.pt", _cut, "random.pt has"),
        ("run.json", _cut, "JSONDecodeError"),
    ],
)
def test_the_newest_complete_checkpoint_is_used_and_the_damaged_one_named(
    folder: str, tmp_path: Path, name: str, harm: Callable[[Path], None], expected: str
) -> None:
    model = load(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    whole = checkpoint.save(tmp_path, 1, model, optimizer, {})
    harm(checkpoint.save(tmp_path, 2, model, optimizer, {}) / name)
    newest, damaged = checkpoint.newest(tmp_path)
    assert newest == whole
    (report,) = damaged
    assert "step-000002 is damaged" in report
    assert re.search(expected, report)
    checkpoint.restore(whole, model, optimizer)
    # What is damaged takes no whole one's place among those that are kept.
    checkpoint.save(tmp_path, 2, model, optimizer, {}, keep=2)
    assert [each.name for each in sorted((tmp_path / "checkpoints").glob("step-*"))] == [
        "step-000001",
        "step-000002",
    ]


def test_without_room_earlier_checkpoints_stay_unchanged(folder: str, tmp_path: Path) -> None:
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


def test_another_number_of_ranks_goes_on(folder: str, tmp_path: Path, started: Nursery) -> None:
    """From two ranks to one and back: the weights and moments are the same, whoever holds them."""

    def train(run: str, ranks: int, kill_after: int | None = None) -> list[float]:
        arguments = (folder, "dapo", str(STEPS), str(tmp_path / run))
        lines = started.train(*arguments, ranks=ranks, kill_after=kill_after)
        return [json.loads(line)["loss"] for line in lines]

    whole = train("whole", 1)
    train("run", 2, kill_after=2)
    resumed = train("run", 1)
    assert 1 <= len(resumed) <= STEPS - 1
    assert resumed == pytest.approx(whole[-len(resumed) :], abs=1e-5)
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").glob("step-*")))
    assert train("run", 2) == pytest.approx(whole[-1:], abs=1e-5), "from the checkpoint before"
    one, two = (load(str(tmp_path / run / "export")).state_dict() for run in ("whole", "run"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-4, rtol=0)
