"""The whole program: it is killed and goes on as if not, and leaves nothing behind."""

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from toys import compose

from sandboxkit import ConfigurationError, ProviderUnavailableError, Session
from sandboxkit.integrations._training import plot, records
from sandboxkit.integrations.grpo.config import Config, read
from sandboxkit.integrations.grpo.loop import learning_rate
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.provider import Output
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, Exit, SandboxSpec
from tests.grpo import tiny

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # torch's warnings

TIMES = ("_seconds", "per_second", "sandbox_")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's model and data, cut down to its single steps: 12 prompts of 12 answers."""
    folder = tmp_path_factory.mktemp("toy")
    compose.write(folder, right=0.2, singles_only=True)
    return folder


def settings(folder: Path, run: Path, *more: str) -> list[str]:
    return tiny.settings(folder / "model", folder / "train.jsonl", run, *more)


def config(folder: Path, run: Path, *more: str) -> Config:
    return read(None, settings(folder, run, *more))


def start(arguments: Sequence[str], scratch: Path, ranks: int = 1) -> "subprocess.Popen[str]":
    """The program as a user starts it; torchrun leaves a folder of logs in `scratch`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return subprocess.Popen(
        [
            sys.executable,
            *(launcher if ranks > 1 else []),
            *("-m", "sandboxkit.integrations.grpo", os.devnull),
            *(f"--set={each}" for each in arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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


def kept(run: Path) -> dict[int, list[dict[str, Any]]]:
    """The rollouts of each step, without what the clock says and who graded first."""
    return {
        step: [
            {key: value for key, value in row.items() if key not in ("seconds", "remembered")}
            for row in records.read(run, step)
        ]
        for step in records.steps(run)
    }


def no_sandboxes(run: Path) -> bool:
    with Session("local") as session:
        return not session.list(tags=("grpo", f"run:{run.name}")).result(30)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(folder: Path, tmp_path: Path) -> None:
    more = ["run.steps=5", "run.checkpoint_every=2", "rollout.prompts_per_step=4"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(settings(folder, whole, *more), tmp_path))
    with start(settings(folder, killed, *more), tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 3"):
                process.kill()
                break
        assert process.wait(200) == -signal.SIGKILL
    assert (killed / "checkpoints" / "step-000002").exists()
    output = finish(start(settings(folder, killed, *more), tmp_path))
    assert "goes on after step" in output
    assert metrics(killed) == metrics(whole), "to the last digit, each step once"
    assert kept(killed) == kept(whole)
    assert set(kept(whole)) == {1, 2, 3, 4, 5}
    one = (whole / "export" / "model.safetensors").read_bytes()
    assert one == (killed / "export" / "model.safetensors").read_bytes()


def test_sigterm_writes_a_checkpoint_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / f"run-{secrets.token_hex(4)}"
    with start(
        settings(folder, run, "run.steps=1000", "run.checkpoint_every=1000"), tmp_path
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 2"):
                process.terminate()
                break
        output = process.stdout.read()
        assert process.wait(120) == 128 + signal.SIGTERM, output
    assert "stopped by SIGTERM" in output
    (made,) = (run / "checkpoints").iterdir()
    assert int(made.name.removeprefix("step-")) == len(metrics(run)) >= 2
    assert no_sandboxes(run)


class Signalling(LocalProvider):
    """SIGTERM comes to this process in the first run after the metrics have a step; 0 is the first run."""

    def __init__(self, run: Path, step: int) -> None:
        super().__init__()
        self.run = run
        self.step: int | None = step

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        if self.step == len(metrics(self.run)):
            self.step = None
            signal.raise_signal(signal.SIGTERM)
        return await super().run_python(sandbox_id, code, command, output)


def test_a_pass_over_the_held_out_rows_that_a_signal_ended_is_made_up_for(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    more = ["run.steps=3", "run.evaluate_every=2", f"data.held_out={folder}/held_out.jsonl"]
    given = config(folder, run, *more, "rollout.prompts_per_step=4", "grading.remember=0")

    def held_out() -> list[int]:
        rows = plot.rows(run / "metrics.jsonl")
        return [row["step"] for row in rows if "held_out" in row]

    assert train(given, Signalling(run, 2)) == signal.SIGTERM
    assert held_out() == [0]
    assert train(given, Signalling(run, 3)) == signal.SIGTERM
    assert held_out() == [0, 2]
    for _ in range(2):
        assert train(given) == 0
        assert held_out() == [0, 2, 3]
    assert len(metrics(run)) == 3


@pytest.mark.parametrize("waits", ["for a verdict", "for a server"])
def test_a_signal_before_the_first_step_ends_the_run(
    folder: Path, tmp_path: Path, waits: str
) -> None:
    run = tmp_path / f"run-{secrets.token_hex(4)}"
    more = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            caller, _ = server.accept()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            caller.close()

        if waits == "for a server":
            threading.Thread(target=answer, daemon=True).start()
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            more = ["engine.kind=vllm_server", f'engine.urls=["{url}"]', "engine.timeout=1"]
            more += ["engine.patience=10000"]
        assert train(config(folder, run, *more), Signalling(run, 0)) == signal.SIGTERM
    assert not (run / "checkpoints").exists()
    assert no_sandboxes(run)


class NeverStarting(LocalProvider):
    """SIGTERM comes to this process while a sandbox starts, which it never does."""

    async def create(self, spec: SandboxSpec) -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        await asyncio.Event().wait()
        return ""


def test_a_signal_while_the_first_sandbox_starts_ends_the_run(folder: Path, tmp_path: Path) -> None:
    given = config(folder, tmp_path / "run", "rollout.deadline=20")
    assert train(given, NeverStarting()) == signal.SIGTERM


@pytest.mark.parametrize(
    "options",
    [
        ["model.lora_rank=4"],
        # With a small rate, for Adam's first steps have the full rate where a gradient is all noise.
        ["optimizer.minibatch=3", "objective.old=trainer", "optimizer.lr=1e-5"],
    ],
    ids=["adapters", "minibatches"],
)
def test_two_ranks_train_as_one_does(folder: Path, tmp_path: Path, options: list[str]) -> None:
    more = ["run.steps=2", "rollout.prompts_per_step=4", *options]
    finish(start(settings(folder, tmp_path / "one", *more), tmp_path))
    finish(start(settings(folder, tmp_path / "two", *more), tmp_path, ranks=2))
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two) == 2
    for alone, together in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", "entropy", "off_policy", "weight"):
            assert together[name] == pytest.approx(alone[name], abs=1e-5), name
        assert together["reward"] == pytest.approx(alone["reward"], abs=0.05)


def test_weights_and_biases_gets_the_metrics(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    output = finish(start(settings(folder, run, "run.steps=1", "run.wandb=toy"), tmp_path))
    assert "wandb" in output
    (log,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert b"infra_failed_rate" in log.read_bytes()


def test_weights_and_biases_without_a_login(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    process = start(settings(folder, tmp_path / "run", "run.wandb=toy"), tmp_path)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "run.wandb='toy': No API key configured" in output
    assert "Traceback" not in output


class Failing(LocalProvider):
    """Every fifth sandbox, or each one, cannot be made; or from some number on none."""

    def __init__(self, every: int = 5, before: int | None = None) -> None:
        super().__init__()
        self.every, self.before, self.made = every, before, 0

    async def create(self, spec: SandboxSpec) -> str:
        self.made += 1
        away = self.made % self.every == 0 if self.before is None else self.made > self.before
        if away:
            raise ProviderUnavailableError("injected")
        return await super().create(spec)


def test_one_failure_in_five_is_counted_and_leaves_no_false_zero(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    more = ["run.steps=10", 'grading.options={together=true, limits={retries=0, reuse="never"}}']
    # Each rollout is graded on its own, so that each can fail.
    more += ["grading.remember=0", "rollout.prompts_per_step=4"]
    assert train(config(folder, run, *more), Failing()) == 0
    rows = metrics(run)
    failed = sum(row["infra_failed_rate"] for row in rows) / len(rows)
    assert 0.1 <= failed <= 0.3
    assert all(row["loss"] is not None for row in rows if row["groups"])
    made = [each for step in range(1, 11) for each in records.read(run, step)]
    assert len(made) == sum(row["rollouts"] for row in rows)
    for each in made:
        assert (each["outcome"] == "infra_error") == (each["reward"] is None)


def test_a_backend_that_is_away_stops_the_run_before_it_starts(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ProviderUnavailableError, match="injected"):
        train(config(folder, tmp_path / "run", "model.name=/nowhere/model"), Failing(every=1))


def test_a_first_row_without_a_sandbox_is_no_fault_of_the_configuration(
    folder: Path, tmp_path: Path
) -> None:
    given = config(folder, tmp_path / "run", "grading.options={limits={retries=0}}")
    with pytest.raises(ProviderUnavailableError, match=r"first row cannot be graded: .*injected"):
        train(given, Failing(before=1))


def test_a_grader_that_raises_now_and_then_is_a_line_on_the_screen(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["run.steps=1", "grading.grader=tests.grpo.test_program:Whimsical", "grading.remember=0"]
    more += ["grading.options={}", "grading.check_tasks=off", "rollout.prompts_per_step=4"]
    assert train(config(folder, tmp_path / "run", *more)) == 0
    said = "warning: the grader raised for 4 rollouts of step 1, which are left out; the first: "
    assert said in " ".join(capsys.readouterr().out.split())


class Whimsical:
    """Raises for every eighth submission."""

    asked = 0

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        if self.asked % 8 == 0:
            raise ZeroDivisionError("in somebody's grader")
        return Verdict(Outcome.PASSED, self.asked % 2)


def test_a_run_ahead_of_training_stays_within_its_lag(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(config(folder, run, "run.steps=6", "buffer.lag=1", "run.evaluate_every=3",
                        f"data.held_out={folder}/held_out.jsonl")) == 0  # fmt: skip
    rows = metrics(run)
    assert len(rows) == 6
    assert max(row["staleness"] for row in rows) <= 1
    assert max(row["staleness"] for row in rows) > 0
    found = [row for row in plot.rows(run / "metrics.jsonl") if "held_out" in row]
    assert [row["step"] for row in found] == [0, 3, 6]


def test_a_second_run_takes_the_rows_that_teach_from_the_easiest_on(
    folder: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    small = ["rollout.prompts_per_step=4", "rollout.group_size=8"]
    assert train(config(folder, first, *small, "run.steps=3")) == 0  # each of 12 rows, 8 times
    rewards: dict[int, list[float]] = {}
    for step in records.steps(first):
        for each in records.read(first, step):
            rewards.setdefault(each["row"], []).append(each["reward"])
    assert set(map(len, rewards.values())) == {8}
    teaching = [row for row in sorted(rewards) if len(set(rewards[row])) > 1]
    assert 4 <= len(teaching) < 12
    teaching.sort(key=lambda row: -sum(rewards[row]))
    more = [*small, "run.steps=1", f"data.curriculum={first}"]
    assert train(config(folder, second, *more)) == 0
    taken = {each["group"]: each["row"] for each in records.read(second, 1)}
    assert [taken[group] for group in range(4)] == teaching[:4]
    with pytest.raises(ConfigurationError, match=r"begun otherwise: .*curriculum=''"):
        train(config(folder, second, *small, "run.steps=2"))


def test_what_is_wrong_is_said_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    def refused(match: str, *more: str) -> None:
        with pytest.raises(ConfigurationError, match=match):
            train(config(folder, tmp_path / "run", *more))

    refused("'/nowhere/model' cannot be loaded", "model.name=/nowhere/model")
    refused("data '/nowhere' cannot be read", "data.train=/nowhere")
    refused("unknown provider 'nowhere'", "grading.provider=nowhere")
    refused("line 1: the prompt has .* shorten it", "engine.max_model_tokens=16")
    refused("needs messages", "rollout.max_turns=2")
    for number, (line, match) in enumerate(
        [
            ("{", "line 2: .*property name"),
            ("[1]", "line 2: a list, not an object"),
            ('{"prompt": ""}', "line 2: prompt='': give text"),
            ('{"prompt": [{"role": "user", "content": "x"}]}', "line 2: .*no chat template"),
        ]
    ):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(compose.row(compose.splits()[0][0])) + f"\n{line}\n")
        refused(match, f"data.train={path}")
    (tmp_path / "empty.jsonl").write_text("\n")
    refused("has no rows", f"data.train={tmp_path}/empty.jsonl")
    path = tmp_path / "no-cases.jsonl"
    path.write_text(json.dumps({"prompt": "task add 2:"}) + "\n")
    refused("first row cannot be graded: the grader raised Config.*cases", f"data.train={path}")


def test_a_folder_in_use_is_refused(folder: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="is in use by another process"):
            train(config(folder, tmp_path / "run"))


def test_the_learning_rate_warms_up_and_comes_down() -> None:
    def at(step: int, schedule: str, *more: str) -> float:
        given = ["model.name=m", "data.train=t", "run.steps=12", "optimizer.warmup=2", *more]
        made = read(None, [*given, "optimizer.lr=1.0", f"optimizer.schedule={schedule}"])
        return learning_rate(made, step)

    assert [at(step, "constant") for step in (0, 1, 2, 11)] == [0.5, 1, 1, 1]
    assert [at(step, "linear") for step in (2, 7, 12)] == [1, 0.5, 0]
    assert at(7, "cosine") == pytest.approx(0.5)
    half = "optimizer.decay_ratio=0.5"
    assert [at(step, "linear", half) for step in (1, 2, 7, 8, 11, 12)] == [
        *(1, 1, 1, pytest.approx(0.8), pytest.approx(0.2), 0)
    ]
    assert at(7, "cosine", "optimizer.decay_ratio=1") == pytest.approx(0.5)
    for match, *settings in (
        ("0.5 does nothing with", half),
        ("decay_ratio=1.5: give a share", "optimizer.decay_ratio=1.5", "optimizer.schedule=linear"),
        ("decay_ratio=0.0: give a share above 0", "optimizer.decay_ratio=0"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            read(None, ["model.name=m", "data.train=t", *settings])
