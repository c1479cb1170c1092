"""A disk without room, an output that nobody reads, a launcher that is killed: a run goes on or ends well."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sandboxkit import ConfigurationError
from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.engines import EngineError, weight_files
from sandboxkit.integrations.grpo.engines.weight_files import WeightFiles
from sandboxkit.integrations.grpo.errors import CheckpointError
from sandboxkit.integrations.grpo.model import load
from sandboxkit.integrations.grpo.program import FAILED, USAGE, main
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.integrations.grpo.training import StepReport, train_step
from tests.components import needs_mounts
from tests.grpo import tiny
from tests.grpo.stand_ins import free_port
from tests.grpo.test_program import metrics

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

needs_small_disk = needs_mounts("a small file system")
STEPS = 6
PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    run = tmp_path / "run"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(run)], check=True)
    yield run
    subprocess.run(["umount", "--lazy", str(run)], check=True)


def fill(place: Path) -> None:
    """To the last byte: no file can grow, nor one be made that has any content."""
    done = subprocess.run(["cp", "/dev/zero", str(place / "ballast")], capture_output=True)
    assert b"No space left" in done.stderr


def settings(toy: Path, run: Path, *more: str) -> list[str]:
    few = ["rollout.prompts_per_step=4", "run.checkpoint_every=2", f"run.steps={STEPS}"]
    return tiny.settings(toy, run, *few, *more)


def config(toy: Path, run: Path, *more: str) -> Config:
    return read(None, settings(toy, run, *more))


def at(monkeypatch: pytest.MonkeyPatch, **does: Callable[[], object]) -> None:
    """Have something happen before the optimizer step of a number, as `step_3=...`."""
    steps = 0

    def counted(*args: Any, **options: Any) -> StepReport:
        nonlocal steps
        steps += 1
        does.get(f"step_{steps}", lambda: None)()
        return train_step(*args, **options)

    monkeypatch.setattr("sandboxkit.integrations.grpo.loop.train_step", counted)


@needs_small_disk
def test_a_disk_that_is_full_for_a_while_costs_no_step_and_no_metrics(
    toy: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(monkeypatch, step_2=lambda: fill(run), step_5=(run / "ballast").unlink)
    assert train(config(toy, run, "run.export_every=3")) == 0
    assert [row["step"] for row in metrics(run)] == [*range(1, STEPS + 1)]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-000005",
        "step-000006",
    ]
    assert sorted(path.name for path in run.glob("*export*")) == ["export", "export-000006"]
    output = capsys.readouterr().out
    for what in ("metrics.jsonl", "step-000002", "export-000003"):
        assert f"{what} could not be written" in output


@needs_small_disk
def test_a_disk_that_stays_full_ends_the_run_with_a_reason_and_more_room_goes_on(
    toy: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--set={each}" for each in settings(toy, run)]
    toml = run.with_name("empty.toml")
    toml.write_text("")
    with monkeypatch.context() as context:
        at(context, step_4=lambda: fill(run))
        assert main([str(toml), *given]) == FAILED
    output = capsys.readouterr()
    assert f"checkpoint {run}/checkpoints/step-000006 could not be written" in output.err
    assert "No space left" in output.err
    assert "Traceback" not in output.err
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000002"]

    assert main([str(toml), *given]) == USAGE
    assert f"run.folder={str(run)!r} cannot be written" in capsys.readouterr().err

    (run / "ballast").unlink()
    assert main([str(toml), *given]) == 0
    assert [row["step"] for row in metrics(run)] == [*range(1, STEPS + 1)]


@needs_small_disk
def test_an_export_is_complete_or_absent(toy: Path, run: Path) -> None:
    model = load(str(toy / "model"))
    checkpoint.export(model, None, run / "export")
    whole = {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    fill(run)
    with pytest.raises(CheckpointError, match=r"export could not be written: .*No space left"):
        checkpoint.export(model, None, run / "export")
    assert {path.name: path.read_bytes() for path in (run / "export").iterdir()} == whole
    assert sorted(path.name for path in run.iterdir()) == ["ballast", "export"]


@needs_small_disk
def test_weights_wait_for_room_in_the_folder_of_the_servers(run: Path) -> None:
    files, weights = WeightFiles(str(run), "a", patience=2.0), {"w": torch.zeros(1000)}
    fill(run)
    begun = time.monotonic()
    with (
        pytest.raises(EngineError, match=r"for engine.patience=2 s no weights .*No space left"),
        files.written(weights.items(), torch.float32),
    ):
        pass
    assert time.monotonic() - begun > 1
    files = WeightFiles(str(run), "a", patience=60.0)
    making_room = threading.Timer(0.5, (run / "ballast").unlink)
    making_room.start()
    with files.written(weights.items(), torch.float32) as path:
        assert load_file(Path(path) / "model-00000.safetensors")["w"].equal(weights["w"])
    making_room.join()
    files.close()
    assert list(run.iterdir()) == []


def test_weights_are_split_and_cast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_files, "_FILE_BYTES", 100)
    weights = [(f"w{number}", torch.full((10,), float(number))) for number in range(7)]
    files = WeightFiles(str(tmp_path), "a", 1.0)
    with files.written(weights, torch.float32) as path:
        made = [load_file(each) for each in sorted(Path(path).iterdir())]
    assert [list(each) for each in made] == [["w0", "w1", "w2"], ["w3", "w4", "w5"], ["w6"]]
    with files.written(weights, torch.bfloat16) as path:
        (first, _) = (load_file(each) for each in sorted(Path(path).iterdir()))
        assert first["w3"].equal(torch.full((10,), 3.0).bfloat16())
        assert list(first) == ["w0", "w1", "w2", "w3", "w4"]
    assert list(Path(path).iterdir()) == []
    files.close()


def test_weights_of_a_killed_run_go_when_it_goes_on(tmp_path: Path) -> None:
    killed, other = (WeightFiles(str(tmp_path), run, 1.0) for run in ("a", "b"))
    (left,) = [path for path in tmp_path.iterdir() if path != other._folder]
    (left / "model-00000.safetensors").write_text("x")
    WeightFiles(str(tmp_path), "a", 1.0)
    assert list(left.iterdir()) == []
    for each in (killed, other):
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_weights_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"engine.folder=.*none' cannot be written"):
        WeightFiles(str(tmp_path / "none"), "a", 1.0)


def test_partial_files_of_a_killed_run_are_removed(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for left in ("checkpoints/.step-000037/shards", ".export-000030"):
        (run / left).mkdir(parents=True)
        (run / left / "half").write_text("x")
    assert train(config(toy, run, "run.steps=1")) == 0
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000001"]
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


@pytest.fixture
def command(toy: Path, tmp_path: Path) -> list[str]:
    """The program on a run in `tmp_path / "run"`; its settings may follow."""
    toml = tmp_path / "empty.toml"
    toml.write_text("")
    program = [sys.executable, "-m", "sandboxkit.integrations.grpo", str(toml)]
    return program + [f"--set={each}" for each in settings(toy, tmp_path / "run")]


@pytest.mark.parametrize("output", [">/dev/full", ">&-"], ids=["a full disk", "closed"])
def test_a_run_outlives_its_readers(command: list[str], tmp_path: Path, output: str) -> None:
    program = ["sh", "-c", f'exec "$@" {output}', "sh", *command, "--set=run.steps=2"]
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert len(metrics(tmp_path / "run")) == 2


def test_a_program_ends_without_the_end_of_its_interpreter() -> None:
    code = (
        "import atexit; from sandboxkit.integrations.grpo.output import leave\n"
        "class Kept:\n    def __del__(self): print('finalized')\n"
        "kept = Kept(); atexit.register(print, 'tidied up'); print('done'); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "done\ntidied up\n")


def test_a_closed_terminal_ends_a_run_with_a_checkpoint(command: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    ours, its = pty.openpty()

    def own_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*command, "--set=run.steps=500", "--set=run.checkpoint_every=500"],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(its)
    deadline = time.monotonic() + 200
    while len(metrics(run)) < 2 and process.poll() is None and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.05)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(200) == 128 + signal.SIGHUP
    (newest,) = (run / "checkpoints").iterdir()
    assert newest.name == f"step-{len(metrics(run)):06}"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
@pytest.mark.parametrize("then", ["joined", "late"])
def test_a_rank_ends_when_its_launcher_is_killed(then: str) -> None:
    launched = {"TORCHELASTIC_RUN_ID": "any", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    rank = [sys.executable, "-c", PROGRAMS["rank"] + PROGRAMS[then]]
    command = ["sh", "-c", '"$@" & wait', "launcher", *rank]
    environment = {**os.environ, **launched, **place}
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert launcher.stdout is not None
    process = os.pidfd_open(int(launcher.stdout.readline()))
    try:
        assert launcher.stdout.readline() in ("joined\n", "begun\n")
        launcher.kill()
        assert launcher.communicate(timeout=150)[0] == "told\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)
