"""The whole program: it is killed and goes on as if not, and leaves nothing behind."""

import asyncio
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations._training import plot, records
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.provider import FirstCommand, Output
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.types import Command, Exit, SandboxSpec
from tests.grpo import tiny
from tests.trl.graders import Refusing

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

WRONG = tomllib.loads((Path(__file__).parent / "wrong_runs.toml").read_text())["run"]
TIMES = ("_seconds", "per_second", "sandbox_")


def config(toy: Path, run: Path, *more: str) -> Config:
    return read(None, tiny.settings(toy, run, *more))


def start(
    arguments: Sequence[str], scratch: Path, ranks: int = 1, by: str = "torch.distributed.run"
) -> "subprocess.Popen[str]":
    """The program as a user starts it, a group of processes; torchrun leaves logs in `scratch`."""
    launcher = ["-m", by, "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    program = [sys.executable, *launcher, "-m", "sandboxkit.integrations.grpo", os.devnull]
    return subprocess.Popen(
        [*program, *(f"--set={each}" for each in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )


def finish(process: "subprocess.Popen[str]") -> str:
    try:
        output, _ = process.communicate(timeout=250)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, output[-3000:]
    return output


def metrics(run: Path) -> list[dict[str, Any]]:
    """Those of the steps, without what the clock says."""
    return [
        {key: value for key, value in row.items() if not any(part in key for part in TIMES)}
        for row in plot.rows(run / "metrics.jsonl")
        if "reward" in row
    ]


def held_out(run: Path) -> list[int]:
    """The steps after which the held-out rows were graded."""
    return [row["step"] for row in plot.rows(run / "metrics.jsonl") if "held_out" in row]


def kept(run: Path) -> dict[int, list[dict[str, Any]]]:
    """The rollouts of each step, without what the clock says and who graded first."""
    return {
        step: [row | {"seconds": 0, "remembered": False} for row in records.read(run, step)]
        for step in records.steps(run)
    }


def no_sandboxes(run: Path) -> bool:
    with Session("local") as session:
        return not session.list(tags=("grpo", f"run:{run.name}")).result(30)


FIVE = ["run.steps=5", "run.checkpoint_every=2", "rollout.prompts_per_step=4"]


@pytest.fixture(scope="module")
def whole(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of five steps that nobody disturbed, and that tells Weights & Biases."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        assert "wandb" in finish(start(tiny.settings(toy, run, *FIVE, "run.wandb=toy"), run.parent))
    return run


def test_a_killed_run_goes_on_as_if_it_never_was(toy: Path, whole: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    given = tiny.settings(toy, killed, *FIVE)
    with start(given, tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 3"):
                process.kill()
                break
        assert process.wait(200) == -signal.SIGKILL
    assert (killed / "checkpoints" / "step-000002").exists()
    assert "goes on after step" in finish(start(given, tmp_path))
    assert metrics(killed) == metrics(whole), "to the last digit, each step once"
    assert kept(killed) == kept(whole)
    assert set(kept(whole)) == {1, 2, 3, 4, 5}
    one, two = (run / "export" / "model.safetensors" for run in (whole, killed))
    assert one.read_bytes() == two.read_bytes()


class Signalling(LocalProvider):
    """SIGTERM comes to this process in the first run after the metrics have a step; 0 is the first run.

    With step -1 it comes while the first sandbox starts, which that never does.
    """

    def __init__(self, run: Path, step: int) -> None:
        super().__init__()
        self.run = run
        self.step: int | None = step

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        if self.step == -1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            await asyncio.Event().wait()
        return await super().create(spec, first)


class _SignallingBox(LocalBox):
    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        assert isinstance(self.provider, Signalling)
        if self.provider.step == len(metrics(self.provider.run)):
            self.provider.step = None
            signal.raise_signal(signal.SIGTERM)
        return await super().run_python(code, command, output)


Signalling.box_type = _SignallingBox


def test_a_pass_over_held_out_rows_that_a_signal_ends_is_redone(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["run.steps=3", "run.evaluate_every=2", f"data.held_out={toy}/held_out.jsonl"]
    given = config(toy, run, *more, "rollout.prompts_per_step=4", "grading.remember=0")

    assert train(given, Signalling(run, 2)) == signal.SIGTERM
    assert held_out(run) == [0]
    assert train(given, Signalling(run, 3)) == signal.SIGTERM
    assert held_out(run) == [0, 2]
    for _ in range(2):
        assert train(given) == 0
        assert held_out(run) == [0, 2, 3]
    assert len(metrics(run)) == 3


@pytest.mark.parametrize("waits", ["for a verdict", "for a server", "for a sandbox"])
def test_a_signal_before_the_first_step_ends_the_run(toy: Path, tmp_path: Path, waits: str) -> None:
    run = tmp_path / f"run-{secrets.token_hex(4)}"
    more = ["rollout.deadline=20"]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            caller, _ = server.accept()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            caller.close()

        if waits == "for a server":
            threading.Thread(target=answer, daemon=True).start()
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            more += ["engine.kind=vllm_server", f'engine.urls=["{url}"]', "engine.timeout=1"]
            more += ["engine.patience=10000"]
        provider = Signalling(run, -1 if waits == "for a sandbox" else 0)
        assert train(config(toy, run, *more), provider) == signal.SIGTERM
    assert not (run / "checkpoints").exists()
    assert no_sandboxes(run)


@pytest.mark.parametrize(
    "options",
    [
        ["model.lora_rank=4"],
        # With a small rate, for Adam's first steps have the full rate where a gradient is all noise.
        ["optimizer.minibatch=3", "objective.old=trainer", "optimizer.lr=1e-5"],
    ],
    ids=["adapters", "minibatches"],
)
def test_two_ranks_train_as_one_does(toy: Path, tmp_path: Path, options: list[str]) -> None:
    more = ["run.steps=2", "rollout.prompts_per_step=4", *options]
    assert train(config(toy, tmp_path / "one", *more)) == 0
    finish(start(tiny.settings(toy, tmp_path / "two", *more), tmp_path, ranks=2))
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two) == 2
    for alone, together in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", "entropy", "off_policy", "weight"):
            assert together[name] == pytest.approx(alone[name], abs=1e-5), name
        assert together["reward"] == pytest.approx(alone["reward"], abs=0.05)


def test_weights_and_biases_gets_the_metrics(whole: Path) -> None:
    (log,) = whole.glob("wandb/offline-run-*/run-*.wandb")
    assert b"infra_failed_rate" in log.read_bytes()


def test_wandb_needs_a_login(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    process = start(tiny.settings(toy, tmp_path / "run", "run.wandb=toy"), tmp_path)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "run.wandb='toy': No API key configured" in output
    assert "Traceback" not in output


def test_one_failure_in_five_is_counted_and_leaves_no_false_zero(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["run.steps=5", 'grading.options={limits={retries=0, reuse="never"}}']
    # Each rollout is graded on its own, so that each can fail.
    more += ["grading.remember=0", "rollout.prompts_per_step=4"]
    provider = Refusing(lambda number: number % 5 == 4)
    assert train(config(toy, run, *more), provider) == 0
    rows = metrics(run)
    failed = sum(row["infra_failed_rate"] * row["rollouts"] for row in rows)
    assert failed == pytest.approx(provider.refused)  # of one or two sandboxes for each rollout
    assert failed > 20
    assert all(row["loss"] is not None for row in rows if row["groups"])
    made = [each for step in range(1, 6) for each in records.read(run, step)]
    assert len(made) == sum(row["rollouts"] for row in rows)
    for each in made:
        assert (each["outcome"] == "infra_error") == (each["reward"] is None)


@pytest.mark.parametrize(
    ("before", "more", "said"),
    [
        (0, ["model.name=/nowhere/model"], "no capacity"),  # before the model is loaded
        (1, ["grading.options={limits={retries=0}}"], "first row cannot be graded: .*no capacity"),
    ],
)
def test_a_backend_that_is_away_stops_the_run(
    toy: Path, tmp_path: Path, before: int, more: Any, said: str
) -> None:
    with pytest.raises(ProviderUnavailableError, match=said):
        train(config(toy, tmp_path / "run", *more), Refusing(lambda number: number >= before))


def test_a_raising_grader_is_printed(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["run.steps=1", "grading.grader=tests.grpo.test_rollout:Counting", "grading.remember=0"]
    more += ['grading.options={trouble="raises at times"}', "grading.check_tasks=off"]
    more += ["rollout.prompts_per_step=4"]
    assert train(config(toy, tmp_path / "run", *more)) == 0
    said = "warning: the grader raised for 4 rollouts of step 1, which are left out; the first: "
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_run_ahead_of_training_stays_within_its_lag(toy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["run.evaluate_every=3", f"data.held_out={toy}/held_out.jsonl"]
    assert train(config(toy, run, "run.steps=6", "buffer.lag=1", *more)) == 0
    staleness = [row["staleness"] for row in metrics(run)]
    assert len(staleness) == 6
    assert 0 < max(staleness) <= 1
    assert held_out(run) == [0, 3, 6]


def test_a_second_run_takes_rows_that_teach_from_the_easiest_on(toy: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    small = ["rollout.prompts_per_step=4", "rollout.group_size=8"]
    assert train(config(toy, first, *small, "run.steps=3")) == 0  # each of 12 rows, 8 times
    rewards: dict[int, list[float]] = {}
    for each in (each for step in records.steps(first) for each in records.read(first, step)):
        rewards.setdefault(each["row"], []).append(each["reward"])
    assert set(map(len, rewards.values())) == {8}
    teaching = [row for row in sorted(rewards) if len(set(rewards[row])) > 1]
    assert 4 <= len(teaching) < 12
    teaching.sort(key=lambda row: -sum(rewards[row]))
    more = [*small, "run.steps=1", f"data.curriculum={first}"]
    assert train(config(toy, second, *more)) == 0
    taken = {each["group"]: each["row"] for each in records.read(second, 1)}
    assert [taken[group] for group in range(4)] == teaching[:4]
    with pytest.raises(ConfigurationError, match=r"begun otherwise: .*curriculum=''"):
        train(config(toy, second, *small, "run.steps=2"))


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["says"])
def test_what_is_wrong_is_said_at_once(toy: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    path = tmp_path / "rows.jsonl"
    more = case.get("settings", [f"data.train={path}"])
    first = (toy / "train.jsonl").read_text().partition("\n")[0]
    path.write_text("".join(row.replace("FIRST", first) + "\n" for row in case.get("rows", ())))
    with pytest.raises(ConfigurationError, match=case["says"]):
        train(config(toy, tmp_path / "run", *more))


def test_a_folder_in_use_and_a_machine_without_gpu_are_refused(toy: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match=r"run.device='cuda': torch finds no GPU"):
            train(config(toy, tmp_path / "run", "run.device=cuda"))
    (tmp_path / "run").mkdir(exist_ok=True)
    with (tmp_path / "run" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="is in use by another process"):
            train(config(toy, tmp_path / "run"))


def test_a_refused_task_is_reported_once_before_training_or_ends_the_run(
    toy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = (toy / "train.jsonl").read_text().splitlines()
    wrong = {**json.loads(lines[0]), "task_id": "first", "reference": "def wrong(): pass\n"}
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(wrong), *lines[1:], ""]))
    run, rows = tmp_path / "run", f"data.train={tmp_path}/rows.jsonl"
    with pytest.raises(ConfigurationError, match="first is refused"):
        train(config(toy, run, rows, "grading.check_tasks=raise"))
    assert train(config(toy, run, rows, "run.steps=1")) == 0
    output = " ".join(capfd.readouterr().out.split())
    assert (
        "warning: tasks checked before training: 1 task: 1 refused; 1 isolated, 0 shared; first is refused"
        in output
    )
    assert train(config(toy, run, rows, "run.steps=2")) == 0
    assert train(config(toy, tmp_path / "off", rows, "run.steps=1", "grading.check_tasks=off")) == 0
    assert "tasks checked" not in capfd.readouterr().out
