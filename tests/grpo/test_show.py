"""`grpo show` reads what a run has kept, in 80 columns, without the packages that training needs."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.integrations._training import records
from sandboxkit.integrations._training.rollout_record import Call
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.rollout import Rollout, record
from sandboxkit.integrations.rewards import Outcome, Verdict
from tests.grpo.test_rollout import tool_call
from tests.grpo.tiny import chat_tokenizer

TOKENS = chat_tokenizer()
SHOWN = tomllib.loads((Path(__file__).parent / "show.toml").read_text())["shown"]
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


def show(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sandboxkit", "grpo", "show", *arguments]
    env = {**os.environ, "COLUMNS": "", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: " ".join(case["arguments"]) or "steps")
def test_it_prints_exactly_what_is_expected(run: Path, case: dict[str, Any]) -> None:
    done = show(
        str(run), *case["arguments"], PYTHONPATH=f"{run}:{os.environ.get('PYTHONPATH', '')}"
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", case["output"])
    assert max(len(line) + line.count("\u6f22") for line in done.stdout.splitlines()) <= 80


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    for said, *arguments in (
        ("has no metrics.jsonl: give a run's folder", str(tmp_path)),
        ("has no rollouts of step 9; it has 1 to 3", str(run), "--step", "9"),
        ("has no such rollout", str(run), "--outcome", "oom", "--best"),
    ):
        done = show(*arguments)
        assert done.returncode == 2
        assert said in done.stderr
