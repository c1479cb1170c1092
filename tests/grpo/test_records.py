"""What is kept of a run's rollouts, whatever ends the run, and how `grpo show` prints it without torch."""

import asyncio
import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandboxkit import Operation, Session
from sandboxkit.integrations._training import records
from sandboxkit.integrations._training.clock import PARTS, StageTimes, Timer
from sandboxkit.integrations._training.rollout_record import Call
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.console import Console
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.metrics import batch_metrics, step_times
from sandboxkit.integrations.grpo.rollout import Group, Rollout, record
from sandboxkit.integrations.rewards import Outcome, Verdict
from tests.grpo.test_rollout import BLOCK, TOOLS, rollouts, row, tool_call
from tests.grpo.tiny import chat_tokenizer

PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())
SLOW = 0.3


class Slow:
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        await asyncio.sleep(SLOW)
        return Verdict(Outcome.PASSED, 1.0, trust="isolated")


SLOWLY = "grading.grader=tests.grpo.test_records:Slow"


def test_time_without_sampling_is_shared_by_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    times = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("sandboxkit.integrations._training.clock.time", times)
    clock = StageTimes()
    seconds: list[dict[Any, float]] = [{}, {}, {}]
    one, two, three = (Timer(clock, each) for each in seconds)
    one.enter("sampling")
    two.enter("queue")
    three.enter("grading")
    now = 4.0  # all of it sampling: nobody waited for the two others
    one.enter("queue")
    now = 10.0  # two in the queue, one grading
    for timer in (one, two, three):
        timer.__exit__()
    now = 100.0  # nobody is under way
    spent = clock.spent()
    assert spent == {"sampling": 4.0, "queue": 4.0, "start": 0.0, "tools": 0.0, "grading": 2.0}
    assert seconds == [{"sampling": 4.0, "queue": 6.0}, {"queue": 10.0}, {"grading": 10.0}]
    reported = step_times(spent, wait=11.0, train=3.0, weights=2.0)
    assert (reported["step_seconds"], reported["sandbox_wait_share"]) == (16.0, 6 / 16)
    assert sum(reported[f"{part}_seconds"] for part in PARTS) == 10.0


def test_each_second_of_a_rollout_is_in_one_part(session: Session) -> None:
    texts = [tool_call("sleep 0.3"), "\n" + BLOCK]

    async def made() -> tuple[Rollout, float]:
        subject, _ = rollouts(session, texts, *TOOLS, SLOWLY, "grading.max_concurrency=1")
        begun = time.monotonic()
        rollout = await subject.one(row(), "0")
        return rollout, time.monotonic() - begun

    for _ in range(5):  # a busy machine may let others run before its first or after its last part
        rollout, elapsed = Operation(made()).result(100)
        assert rollout.seconds.keys() == set(PARTS)
        if elapsed - sum(rollout.seconds.values()) < 0.05:
            break
    assert sum(rollout.seconds.values()) == pytest.approx(elapsed, abs=0.05)
    assert rollout.seconds["tools"] > 0.29
    assert rollout.seconds["grading"] > SLOW * 0.9
    (call,) = rollout.calls
    assert 0.29 < call.seconds <= rollout.seconds["tools"]


def test_times_of_sandboxes_are_without_the_queue_and_the_remembered(session: Session) -> None:
    subject, engine = rollouts(session, [BLOCK], SLOWLY, "grading.max_concurrency=1")

    async def made() -> list[Rollout]:
        first = await subject.one(row(), "0")
        others = [await subject.one(row(), str(number)) for number in range(1, 4)]
        engine.texts[0] = BLOCK.replace("2", "3")
        both = [subject.one(row(), "5"), subject.one(Row(1, (1,), "", "", {}), "6")]
        return [first, *others, *await asyncio.gather(*both)]

    done = Operation(made()).result(100)
    assert [each.remembered for each in done] == [False, True, True, True, False, False]
    found = batch_metrics(Batch(finished=[Group(0, tuple(done))]), 0)
    assert found["sandbox_p50"] >= SLOW * 0.9, "the three that remember are not among them"
    own = [each for each in done if not each.remembered]
    assert found["sandbox_p99"] == max(each.seconds["grading"] for each in own)
    assert max(each.seconds["queue"] for each in own) >= SLOW * 0.9, "one waited for another"
    assert found["rollout/queue_seconds_p99"] == max(each.seconds["queue"] for each in own)


def test_a_rollout_is_kept_turn_by_turn(session: Session) -> None:
    texts = [tool_call("echo $((6 * 7))"), tool_call("exit 3"), "\n" + BLOCK]
    subject, _ = rollouts(session, texts, *TOOLS)
    made = Operation(subject.one(row(task_id="double"), "0")).result(100)
    kept = json.loads(json.dumps(record(7, 2, made, subject.text)))
    assert [turn["role"] for turn in kept["turns"]] == ["assistant", "tool"] * 2 + ["assistant"]
    assert kept["turns"][0]["text"] == texts[0] + "<|end|>"
    assert "42" in kept["turns"][1]["text"]
    assert [(call["turn"], call["error"]) for call in kept["calls"]] == [(0, False), (2, True)]
    assert kept["calls"][0]["answer"] == "42\n"
    assert sum(turn["tokens"] for turn in kept["turns"]) == len(made.completion)
    assert kept["tokens"]["policy"] + kept["tokens"]["tools"] == len(made.completion)
    assert (kept["reward"], kept["outcome"], kept["trust"]) == (1.0, "passed", "isolated")
    assert (kept["group"], kept["member"], kept["task_id"], kept["cut"]) == (7, 2, "double", [])


def test_what_is_kept_of_a_rollout_is_bounded_and_says_what_was_cut() -> None:
    answer = "\ud800" + "y" * 300_000
    calls = [Call(0, "x", answer, False, False, 0.0) for _ in range(20_000)]
    text = "a" * 200_000 + "the end"
    made = Rollout(Row(0, (1,), "z" * 90_000, "", {}), [5] * 9, [True] * 9, [0.0] * 9, calls=calls)
    kept = record(0, 0, made, lambda _: text)
    assert len(json.dumps(kept)) < 700_000
    assert kept["turns"][0]["text"].endswith("aaa" + "the end")
    assert "characters left out ...]" in kept["turns"][0]["text"]
    assert kept["cut"][:3] == ["prompt", "turns.0", "calls.0.answer"]
    assert kept["cut"][-1] == "calls"
    assert len(kept["calls"]) == 500


def test_a_step_is_a_line_of_80_columns_and_a_rollout_is_shown_every_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = [f"run.folder={tmp_path}", "model.name=m", "data.train=t"]
    settings = read(None, [*folder, "run.steps=900", "run.show_every=2"])
    made = Rollout(Row(0, (1,), "", "", {}), [5], [True], [0.0])
    for begins, rewards in ((0, (0.25, 0.5, 0.375)), (3, (0.125,))):
        console = Console(settings, begins)
        for step, reward in enumerate(rewards, begins + 1):
            console.rollouts(step, [record(0, 0, made, lambda _: "\x1b[2J" + "x" * 99)])
            console.step({"step": step, "reward": reward, "tokens_per_second": 12345.6})
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 or line.startswith(str(tmp_path)) for line in lines), lines
    shown = [line for line in lines if line.startswith("a rollout of step")]
    assert shown == [f"a rollout of step {step}: infra_error, reward None" for step in (1, 3)]
    assert lines.count("  | " + ("\\x1b[2J" + "x" * 99)[:76]) == 2
    best = [line.split("  ")[1:4] for line in lines if line.startswith("step ")]
    assert best == [
        ["reward 0.250", "best 0.250", "12346 tok/s"],
        ["reward 0.500", "best 0.500", "12346 tok/s"],
        ["reward 0.375", "best 0.500", "12346 tok/s"],
        ["reward 0.125", "best 0.500", "12346 tok/s"],
    ]
    assert len(list(records.read(tmp_path, 3))) == 1
    odd = {"infra_failed_rate": 0.5, "truncated": 0.2, "skipped": 1.0}
    console.step({"step": 5, "reward": math.nan, "tokens_per_second": 1.0, **odd})
    assert "left  infra 50%  cut off 20%  not finite" in capsys.readouterr().out


def test_a_disk_without_room_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rollouts").touch()  # a file, so that no folder can be made
    console = Console(read(None, ["model.name=m", "data.train=t", f"run.folder={tmp_path}"]), 0)
    made = Rollout(Row(0, (1,), "", "", {}))
    console.rollouts(1, iter([record(0, 0, made, lambda _: "")]))
    assert "warning: the rollouts of step 1 cannot be written: [Errno" in capsys.readouterr().out


def test_a_kill_while_a_step_is_written_loses_that_step_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAMS["killed_writer"], str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    assert list(records.read(tmp_path, 1)) == [{"step": 1}]
    assert (records.steps(tmp_path), list(records.read(tmp_path, 2))) == ([1], [])
    assert len(os.listdir(tmp_path / "rollouts")) == 2, "it was in the middle"
    records.write(tmp_path, 3, [{"step": 3}])
    records.cut(tmp_path, 2)
    assert os.listdir(tmp_path / "rollouts") == ["step-000001.jsonl.gz"]


def test_the_standard_library_reads_it_and_of_a_damaged_file_what_is_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"number": number, "text": os.urandom(900).hex()} for number in range(300)]
    records.write(tmp_path, 12, rows)
    path = tmp_path / "rollouts" / "step-000012.jsonl.gz"
    with gzip.open(path, "rt") as file:
        assert [json.loads(line) for line in file] == rows
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = list(records.read(tmp_path, 12))
    assert f"{path} is damaged" in caplog.text
    assert 50 < len(found) < 250
    assert found == rows[: len(found)]


TOKENS = chat_tokenizer()
SHOWN = tomllib.loads((Path(__file__).parent / "show.toml").read_text())
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
    first = [made(late, "while True: pass"), made(passed, LONG)]
    second = [made(away, "lost"), made(late, tool_call("cat none"), call)]
    for step, members in enumerate([first, second, [made(away, "not trained on")]], 1):
        rows = [record(step, n, each, TOKENS.decode) for n, each in enumerate(members)]
        records.write(run, step, [{"step": step, **row} for row in rows])
    (run / "metrics.jsonl").write_text(SHOWN["metrics"])
    (run / "torch.py").write_text("raise AssertionError('torch was imported')")
    return run


def show(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sandboxkit", "grpo", "show", *arguments]
    env = {**os.environ, "COLUMNS": "", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


@pytest.mark.parametrize(
    "case", SHOWN["shown"], ids=lambda case: " ".join(case["arguments"]) or "steps"
)
def test_it_prints_exactly_what_is_expected(run: Path, case: dict[str, Any]) -> None:
    path = f"{run}:{os.environ.get('PYTHONPATH', '')}"
    done = show(str(run), *case["arguments"], PYTHONPATH=path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", case["output"])
    assert max(len(line) + line.count("\u6f22") for line in done.stdout.splitlines()) <= 80


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    for said, *arguments in (
        ("has no metrics.jsonl: give a run's folder", str(tmp_path)),
        ("has no rollouts of step 9; it has 1 to 3", str(run), "--step", "9"),
        ("has no such rollout", str(run), "--outcome", "oom", "--best"),
    ):
        done = show(*arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
