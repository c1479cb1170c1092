"""The overnight run in small: it is stopped and goes on, and what it survives is in its record."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toys import compose

from benchmarks.grpo_overnight import measures, outcome, report
from benchmarks.grpo_overnight.drive import MARK
from benchmarks.grpo_overnight.plan import Leg, Plan, Progress
from sandboxkit import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
STEPS, FURTHER = 5, 2
GIVEN = ("--stand-in", f"--steps={STEPS}", "--kill-every=5", "--back-after=1", "--signals=1")


def begin(folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.grpo_overnight", f"--folder={folder}"),
                *(*GIVEN, "--look-every=0.5", *more),
            ],
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def finish(process: "subprocess.Popen[bytes]", folder: Path) -> int:
    try:
        return process.wait(600)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(60)
        raise AssertionError((folder / "said").read_text()) from None


@pytest.mark.timeout(1800)
def test_it_goes_on_after_signals_and_its_record_has_each_step_once(tmp_path: Path) -> None:
    leg = Leg(tmp_path / "disturbed")
    compose.warm_model(0.3, steps=60).save_pretrained(tmp_path / "model")
    compose.tokenizer().save_pretrained(tmp_path / "model")
    train, held_out = compose.splits()
    for name, programs in (("train", train), ("held_out", held_out[:12])):
        lines = [json.dumps(compose.row(program)) + "\n" for program in programs]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))

    with begin(tmp_path) as process:
        deadline = time.monotonic() + 600
        while not Progress.load(leg).signals and process.poll() is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        process.terminate()
        assert finish(process, tmp_path) == 128 + signal.SIGTERM, (tmp_path / "said").read_text()
    with begin(tmp_path) as process:
        assert finish(process, tmp_path) == 0, (tmp_path / "said").read_text()

    made = outcome.read(leg, tmp_path / "train.jsonl")
    assert made is not None
    assert (made.complaints, made.progress.left, made.wrong) == ([], [], 0)
    assert sorted(made.held_out) == list(range(STEPS + 1))
    assert len(made.steps) == STEPS
    assert made.kept == sum(made.outcomes.values()) == STEPS * 64
    assert made.known > STEPS * 8
    assert made.resumed[-1] >= STEPS / 2
    assert made.progress.pieces == 2
    assert made.progress.signals == 1
    assert made.progress.kills >= made.lost >= 1
    assert made.injected["lost"] > 0
    mark = f"{MARK}={leg.folder}"
    assert measures.left(process.pid, leg.folder / "sandboxes", leg.folder / "tmp", mark) == []
    page = report.page(tmp_path)
    assert f"| steps | {STEPS} of {STEPS} |" in page
    assert "| SIGTERM to the trainer | 1 |" in page
    with begin(tmp_path, f"--further={FURTHER}") as process:
        assert finish(process, tmp_path) == 0, (tmp_path / "said").read_text()
    made = outcome.read(leg, tmp_path / "train.jsonl")
    assert made is not None
    assert (made.complaints, made.progress.left, made.wrong) == ([], [], 0)
    assert (len(made.steps), made.progress.pieces) == (STEPS + FURTHER, 3)
    page = report.page(tmp_path)
    assert f"| steps | {STEPS + FURTHER} of {STEPS + FURTHER} |" in page
    assert f"| held-out pass rate at step {STEPS} | {made.held_out[STEPS]:.3f} |" in page
    plan = Plan.load(tmp_path)
    assert plan is not None
    with pytest.raises(ConfigurationError, match="further=1: it has gone on for 2"):
        plan.prolonged(tmp_path, 1)
    with pytest.raises(ConfigurationError, match="seed=1: the folder's run was begun with 0"):
        plan.refuse_changes(seed=1, rate=None)


def test_steps_beside_the_other_run_are_those_within_a_minute() -> None:
    assert outcome.beside([0, 100, 200, 300], [30, 250]) == 0.75
    assert outcome.beside([], [1.0]) == 0
