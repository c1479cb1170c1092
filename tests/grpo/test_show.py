"""`grpo show` reads what a run has kept, in 80 columns, without the packages that training needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit.integrations._training import records
from sandboxkit.integrations._training.rollout_record import Call
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.rollout import Rollout, record
from sandboxkit.integrations.rewards import Outcome, Verdict
from tests.grpo.test_rollout import tool_call
from tests.grpo.tiny import chat_tokenizer

TOKENS = chat_tokenizer()
LONG = "def f(x):\n    return '" + "\u6f22" * 100 + "'  \x1b[31m"


def made(verdict: Verdict, text: str, call: Call | None = None) -> Rollout:
    ids = list(TOKENS(text)["input_ids"])
    rollout = Rollout(Row(3, (5, 6), "Write f.", "", {}), ids, [True] * len(ids), [0.0] * len(ids))
    rollout.verdict, rollout.calls = verdict, [call] if call else []
    rollout.seconds = {"sampling": 1.5, "queue": 0.25, "grading": 0.5}
    return rollout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    passed = Verdict(Outcome.PASSED, 1.0, detail="3 tests", trust="isolated")
    late = Verdict(Outcome.TIMEOUT, 0.0, detail="too late\x1b[2J")
    away = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "the daemon is away")
    call = Call(0, "{}", "no such file", True, False, 0.5)
    groups = {
        1: [made(late, "while True: pass"), made(passed, LONG)],
        2: [made(away, "lost"), made(late, tool_call("cat none"), call)],
        3: [made(away, "not trained on")],
    }
    for step, members in groups.items():
        rows = [record(step, n, each, TOKENS.decode) for n, each in enumerate(members)]
        records.write(run, step, [{"step": step, **row} for row in rows])
    metrics = [
        {"step": 0, "held_out": 0.5},
        {"step": 1, "rollouts": 2, "reward": 0.5, "truncated": 0.5, "sandbox_wait_share": 0.31,
         "outcome/passed": 1, "outcome/timeout": 1, "outcome/failed": 0},
        {"step": 2, "rollouts": 2, "reward": 0.0, "truncated": None, "sandbox_wait_share": 0.1,
         "outcome/infra_error": 1, "outcome/timeout": 1},
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (run / "torch.py").write_text("raise AssertionError('torch was imported')")
    return run


def show(run: Path, *arguments: str) -> list[str]:
    """What it prints into a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "sandboxkit", "grpo", "show", str(run), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "COLUMNS": "",
            "PYTHONPATH": f"{run}:{os.environ.get('PYTHONPATH', '')}",
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(len(line) + line.count("\u6f22") for line in lines) <= 80
    assert "\x1b" not in done.stdout
    return lines


def test_steps_are_listed_with_their_outcomes_also_one_that_did_not_end(run: Path) -> None:
    lines = show(run)
    assert lines[1].split() == ["1", "2", "0.500", "50%", "31%", *["passed", "1,", "timeout", "1"]]
    assert lines[2].split()[:5] == ["2", "2", "0.000", "-", "10%"]
    assert lines[3].split() == ["3", "1", "-", "0%", "-", "infra_error", "1"]
    assert lines[5] == "5 rollouts"
    assert lines[6].split() == ["timeout", "2", "40%", "#" * 16]


def test_rollouts_are_listed_by_step_and_by_outcome(run: Path) -> None:
    assert [line.split()[:4] for line in show(run, "--step", "1")[1:]] == [
        ["1", "1.0", "0.000", "timeout"],
        ["1", "1.1", "1.000", "passed"],
    ]
    listed = show(run, "--outcome", "timeout")[1:]
    assert [line.split()[1] for line in listed] == ["1.0", "2.1"]
    assert listed[0].endswith(r"too late\x1b[2J")
    assert show(run, "--outcome", "oom")[1:] == ["none"]


def test_one_rollout_is_shown_completely(run: Path) -> None:
    best = show(run, "--best")
    assert best[0] == "step 1, rollout 1.1, row 3"
    assert best[1] == "reward 1.000: passed, of the policy's doing, isolated"
    assert "seconds: sampling 1.50, queue 0.25, grading 0.50" in best
    assert "Write f." in best
    assert "def f(x):" in best
    code = best[best.index("def f(x):") + 1 :]
    assert "".join(code) == "    return '" + "\u6f22" * 100 + "'  \\x1b[31m"
    worst = show(run, "--worst")
    assert worst[0].startswith("step 2, rollout 2.1"), "of equal ones the latest"
    assert worst[-2].startswith("--- call, 0.50 s, error; its answer")
    assert worst[-1] == "no such file"
    lost = show(run, "--rollout", "2.0")
    assert "reward none: infra_error, the infrastructure's failure, shared" in lost


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        command = [sys.executable, "-m", "sandboxkit", "grpo", "show", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        return done.stderr

    assert "has no metrics.jsonl: give a run's folder" in refused(str(tmp_path))
    assert "has no rollouts of step 9; it has 1 to 3" in refused(str(run), "--step", "9")
    assert "has no such rollout" in refused(str(run), "--outcome", "oom", "--best")
