"""A run that can be left alone: nothing that is not a number reaches the weights; whatever ends it, also a
disk without room, an output that nobody reads or a launcher that is killed, leaves a checkpoint."""

import contextlib
import dataclasses
import fcntl
import math
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
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations._training import records
from sandboxkit.integrations.grpo import checkpoint
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.engines import EngineError, Weights, weight_files
from sandboxkit.integrations.grpo.engines.hf import HFEngine
from sandboxkit.integrations.grpo.engines.weight_files import WeightFiles
from sandboxkit.integrations.grpo.errors import CheckpointError, DivergedError
from sandboxkit.integrations.grpo.model import Sequences, load, logp_of
from sandboxkit.integrations.grpo.objective import Objective
from sandboxkit.integrations.grpo.program import FAILED, USAGE, main
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.integrations.grpo.training import StepReport, TrainingSample, train_step
from tests.components import needs_mounts
from tests.grpo import tiny
from tests.grpo.stand_ins import free_port
from tests.grpo.test_program import metrics
from tests.trl.graders import Refusing

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

needs_small_disk = needs_mounts("a small file system")
STEPS = 6
PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())


def settings(toy: Path, run: Path, *more: str) -> list[str]:
    few = ["rollout.prompts_per_step=4", "run.checkpoint_every=100"]
    return tiny.settings(toy, run, *few, *more)


def config(toy: Path, run: Path, *more: str) -> Config:
    return read(None, settings(toy, run, *more))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["advantage", "sampler"])
def test_a_step_that_is_not_finite_changes_nothing(folder: str, where: str, value: float) -> None:
    batch = tiny.samples(4)
    first = batch[0]
    logp = (-value,) * len(first.completion) if where == "sampler" else first.sampler_logp
    advantage = value if where == "advantage" else 1.0
    batch[0] = TrainingSample(first.prompt, first.completion, first.mask, logp, advantage)
    objective = Objective(weighting="token_mask", weight_cap=1e30)
    model, before = load(folder), load(folder).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert train_step(model, optimizer, batch, objective, max_tokens_per_row=24).skipped
    assert all(torch.equal(found, before[name]) for name, found in model.state_dict().items())
    whole = tiny.samples(4)
    assert not train_step(model, optimizer, whole, objective, max_tokens_per_row=24).skipped


def test_the_trainer_has_no_dropout_either(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    assert shape.attn_pdrop == shape.resid_pdrop == shape.embd_pdrop == 0.1
    GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    row = Sequences([(2, 3, 4, 5, 6, 7, 8)], [2])
    model = load(str(tmp_path))
    assert model.training
    first, second = logp_of(model, row)[0], logp_of(model, row)[0]
    sampled, _ = logp_of(model.eval(), row)
    assert torch.equal(first, second)
    assert torch.equal(first, sampled)


@pytest.mark.parametrize("update", ["objective.epochs=3", "objective.old=trainer"])
def test_clipping_acts_in_off_policy_runs(toy: Path, tmp_path: Path, update: str) -> None:
    clips = ["objective.clip_high=1e-4", "objective.clip_low=1e-4"]
    updates = [update] if "epochs" in update else [update, "optimizer.minibatch=3"]
    assert train(config(toy, tmp_path / "run", "run.steps=2", *updates, *clips)) == 0
    rows = metrics(tmp_path / "run")
    assert {"truncated", "all_right", "all_wrong", "outcome/passed"} <= rows[0].keys()
    assert any(row["groups"] for row in rows)
    for row in (row for row in rows if row["groups"]):
        assert row["clip_fraction"] > 0, "of the last of three epochs"
        if "objective.old=trainer" in updates:
            # The weight is against the policy before the first update, which is the sampler's.
            assert row["weight"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("version", [0, 1])
def test_other_weights_stop_a_run(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    whole = HFEngine.update_weights

    def doubled(self: HFEngine, weights: Weights, number: int) -> None:
        changed = ((name, 2 * value if "v_proj" in name else value) for name, value in weights)
        whole(self, changed if number == version else weights, number)

    monkeypatch.setattr(HFEngine, "update_weights", doubled)
    run = tmp_path / "run"
    with pytest.raises(EngineError, match=rf"the weights of step {version}, .* by the trainer"):
        train(config(toy, run, "run.steps=3"))
    assert metrics(run) == []


def test_a_score_of_fixed_tokens_stops_a_run(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its completions have the right log-probabilities."""
    whole, asked = HFEngine.score, list[tuple[int, ...]]()

    async def shifted(self: HFEngine, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        asked.append(ids)
        return tuple(value - 0.01 for value in await whole(self, ids, server))

    monkeypatch.setattr(HFEngine, "score", shifted)
    with pytest.raises(EngineError, match=r"the weights of step 0, 62 tokens .* of 0.01 and more"):
        train(config(toy, tmp_path / "run", "run.steps=3"))
    (ids,) = asked
    assert len(ids) == 63, "one is left for the token that vLLM samples"
    assert 0 not in ids, "a special token"


def test_a_broken_sampler_stops_a_run(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = HFEngine.generate

    async def broken(self: HFEngine, request: Any) -> Any:
        done = await whole(self, request)
        if request.seed < 4:  # the check after a hand-over
            return done
        return dataclasses.replace(done, logp=tuple(math.nan for _ in done.logp))

    run = tmp_path / "run"
    assert train(config(toy, run, "run.steps=1")) == 0
    monkeypatch.setattr(HFEngine, "generate", broken)
    with pytest.raises(DivergedError, match=r"3 optimizer steps in a row .* log-probabilities"):
        train(config(toy, run, "run.steps=9"))
    assert [row["skipped"] for row in metrics(run)] == [False, True, True]
    newest = run / "checkpoints" / "step-000003"
    assert checkpoint.newest(run) == (newest, [])
    model, before = (load(str(run / "export")) for _ in range(2))
    checkpoint.restore(newest, model, torch.optim.AdamW(model.parameters()))
    for name, value in before.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_backend_that_goes_away_leaves_a_checkpoint(toy: Path, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", 2
    options = 'grading.options={limits={retries=0, reuse="never"}}'
    at_once = "grading.patience=0"
    made = config(toy, run, "run.steps=50", "grading.remember=0", options, at_once)
    with pytest.raises(ProviderUnavailableError, match=r"rollouts .*: .*no capacity") as error:
        train(made, Refusing(lambda _: run.exists() and len(metrics(run)) >= steps))
    assert error.value.__notes__ == ["a checkpoint was written after step 2"]
    assert len(metrics(run)) == steps
    assert "infra_error" in [row["outcome"] for row in records.read(run, steps + 1)]
    assert checkpoint.newest(run) == (run / "checkpoints" / "step-000002", [])


def test_a_run_with_another_configuration_is_not_continued(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(config(toy, run, "run.steps=1", "run.export_every=1")) == 0
    assert (run / "export-000001" / "config.json").exists()
    saved = (run / "config.json").read_text()
    for change in ("run.seed=7", "objective.loss=grpo", "optimizer.weight_decay=0.1"):
        name = change.partition("=")[0]
        with pytest.raises(ConfigurationError, match=rf"begun otherwise: {name}=.*\(was "):
            train(config(toy, run, "run.steps=2", change))
        assert (run / "config.json").read_text() == saved
    moved = tmp_path / "moved.jsonl"
    moved.write_text((toy / "train.jsonl").read_text())
    allowed = ["run.steps=2", "rollout.deadline=200", "engine.max_batch=9", "optimizer.lr=1e-3"]
    allowed += [f"data.train={moved}"]
    assert train(config(toy, run, *allowed)) == 0
    assert [row["lr"] for row in metrics(run)] == [6e-4, 1e-3]
    first, *others = moved.read_text().splitlines(keepends=True)
    moved.write_text("".join([*others, first]))
    with pytest.raises(ConfigurationError, match=r"begun with other rows than those of data.train"):
        train(config(toy, run, *allowed, "run.steps=3"))
    assert len(metrics(run)) == 2


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


OFTEN = ("run.checkpoint_every=2", f"run.steps={STEPS}")


def at(monkeypatch: pytest.MonkeyPatch, **does: Callable[[], object]) -> None:
    """Have something happen before the optimizer step of a number, as `step_3=...`."""
    steps = 0

    def counted(*args: Any, **options: Any) -> StepReport:
        nonlocal steps
        steps += 1
        does.get(f"step_{steps}", lambda: None)()
        return train_step(*args, **options)

    monkeypatch.setattr("sandboxkit.integrations.grpo.loop.train_step", counted)


def test_bf16_computes_in_it_whoever_makes_a_process_group(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM makes one in the trainer's process, after the model has been loaded."""
    made, types = HFEngine.update_weights, set[torch.dtype]()

    def grouped(*args: Any) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        made(*args)

    def noted(model: PreTrainedModel, *args: Any, **options: Any) -> StepReport:
        head = model.get_output_embeddings()
        note = head.register_forward_hook(lambda *given: types.add(given[-1].dtype))
        report = train_step(model, *args, **options)
        note.remove()
        return report

    monkeypatch.setattr(HFEngine, "update_weights", grouped)
    monkeypatch.setattr("sandboxkit.integrations.grpo.loop.train_step", noted)
    try:
        assert train(config(toy, tmp_path, "model.bf16=true", "run.steps=2")) == 0
    finally:
        dist.destroy_process_group()
    assert types == {torch.bfloat16}


@needs_small_disk
def test_a_disk_that_is_full_for_a_while_costs_no_step_and_no_metrics(
    toy: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(monkeypatch, step_2=lambda: fill(run), step_5=(run / "ballast").unlink)
    assert train(config(toy, run, *OFTEN, "run.export_every=3")) == 0
    assert [row["step"] for row in metrics(run)] == [*range(1, STEPS + 1)]
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["step-000005", "step-000006"]
    assert sorted(path.name for path in run.glob("*export*")) == ["export", "export-000006"]
    output = capsys.readouterr().out
    for what in ("metrics.jsonl", "step-000002", "export-000003"):
        assert f"{what} could not be written" in output


@needs_small_disk
def test_a_disk_that_stays_full_ends_the_run_with_a_reason_and_more_room_goes_on(
    toy: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [os.devnull, *(f"--set={each}" for each in settings(toy, run, *OFTEN))]
    with monkeypatch.context() as context:
        at(context, step_4=lambda: fill(run))
        assert main(given) == FAILED
    output = capsys.readouterr()
    assert f"checkpoint {run}/checkpoints/step-000006 could not be written" in output.err
    assert "No space left" in output.err
    assert "Traceback" not in output.err
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000002"]

    assert main(given) == USAGE
    assert f"run.folder={str(run)!r} cannot be written" in capsys.readouterr().err

    (run / "ballast").unlink()
    assert main(given) == 0
    assert [row["step"] for row in metrics(run)] == [*range(1, STEPS + 1)]


def test_a_dead_daemon_ends_the_program_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    given = ["model.name=m", "data.train=t", f"run.folder={tmp_path}", "grading.provider=docker"]
    assert main([os.devnull, *(f"--set={each}" for each in given)]) == FAILED
    output = capsys.readouterr().err
    assert "no Docker daemon at unix:///nonexistent.sock" in output
    assert "Traceback" not in output


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
    assert train(config(toy, run, *OFTEN, "run.steps=1")) == 0
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000001"]
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


@pytest.fixture
def command(toy: Path, tmp_path: Path) -> list[str]:
    """The program on a run in `tmp_path / "run"`; its settings may follow."""
    program = [sys.executable, "-m", "sandboxkit.integrations.grpo", os.devnull]
    return program + [f"--set={each}" for each in settings(toy, tmp_path / "run", *OFTEN)]


@pytest.mark.parametrize("output", [">/dev/full", ">&-"], ids=["a full disk", "closed"])
def test_a_run_outlives_its_readers(command: list[str], tmp_path: Path, output: str) -> None:
    program = ["sh", "-c", f'exec "$@" {output}', "sh", *command, "--set=run.steps=2"]
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert len(metrics(tmp_path / "run")) == 2


def test_a_program_ends_without_the_end_of_its_interpreter() -> None:
    program = [sys.executable, "-c", PROGRAMS["leaves"]]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "done\ntidied up\n")


def test_a_closed_terminal_ends_a_run_with_a_checkpoint(command: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    ours, its = pty.openpty()
    own: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), its)
    own |= {"preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), "start_new_session": True}
    endless = [*command, "--set=run.steps=500", "--set=run.checkpoint_every=500"]
    process = subprocess.Popen(endless, **own)
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
