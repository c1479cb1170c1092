"""An outage of the backend ends a run with a reason, and what needed no sandbox is not asked."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.grpo_failures import Failing
from sandboxkit import Operation, ProviderUnavailableError, Session
from sandboxkit.integrations.grpo import sampling
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.metrics import batch_metrics
from sandboxkit.integrations.grpo.program import FAILED
from sandboxkit.integrations.grpo.rollout import Group, Rollout
from sandboxkit.integrations.grpo.sampling import Sampling, Stop
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grading_session
from tests.grpo.test_rollout import (
    BLOCK,
    END,
    TASK,
    TOOLS,
    Away,
    Script,
    rollouts,
    row,
    run,
    tool_call,
)
from tests.grpo.tiny import chat_tokenizer


def test_a_dead_daemon_ends_the_program_with_a_reason(tmp_path: Path) -> None:
    given = ["model.name=m", "data.train=t", f"run.folder={tmp_path}", "grading.provider=docker"]
    made = subprocess.run(
        [
            *(sys.executable, "-m", "sandboxkit.integrations.grpo", os.devnull),
            *(f"--set={each}" for each in given),
        ],
        env={**os.environ, "DOCKER_HOST": "unix:///nonexistent.sock"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == FAILED, made.stderr
    assert "no Docker daemon at unix:///nonexistent.sock" in made.stderr
    assert "Traceback" not in made.stderr


def evaluated(
    folder: Path, provider: Any, rows: int, *more: str
) -> tuple[dict[str, float], list[float]]:
    """The metrics of held-out rows, and the temperatures of what was asked of the engine."""
    path = folder / "rows.jsonl"
    path.write_text((json.dumps({"prompt": "ask", **TASK}) + "\n") * rows)
    given = ["model.name=m", f"data.train={path}", f"data.held_out={path}", *more]
    words = chat_tokenizer()
    engine = Script(words, ["I cannot.", BLOCK])
    with Session(provider) as session:
        subject = Sampling(read(None, given), words, {END}, engine, session, Stop(), 0)
        try:
            return subject.evaluate(), [request.temperature for request in engine.seen]
        finally:
            subject.close()


def test_a_dead_daemon_is_not_the_score_of_the_held_out_rows(tmp_path: Path) -> None:
    more = ["grading.options={limits={retries=0}}", "grading.patience=0"]
    with pytest.raises(ProviderUnavailableError, match=r"2 of 2 held-out .*no room"):
        evaluated(tmp_path, Away(), 4, *more)


def test_held_out_rows_are_sampled_several_times_or_written_greedily(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "local", 1, "run.evaluate_samples=0", "rollout.temperature=0.7")
    assert found == ({"held_out": 0.0}, [0.0])
    rates, temperatures = evaluated(
        tmp_path, "local", 1, "run.evaluate_samples=4", "rollout.temperature=0.7"
    )
    assert temperatures == [0.7] * 4
    wanted = {"held_out": 0.5, "held_out/pass@2": 5 / 6, "held_out/pass@4": 1.0}
    assert rates == pytest.approx(wanted)


def needed(texts: Sequence[str], *more: str, count: int = 1) -> list[bool]:
    with Session("local", max_concurrency=4) as session:
        made = run(rollouts(session, texts, *more)[0], row(), count)
    assert None not in {rollout.verdict.reward for rollout in made}
    return [rollout.needed_sandbox for rollout in made]


def test_samples_that_needed_a_sandbox_are_known() -> None:
    assert needed(["I cannot."]) == [False]
    assert needed([BLOCK]) == [True]
    assert sorted(needed([BLOCK], count=3)) == [False, False, True], "the others remember"
    assert needed(["I cannot."], *TOOLS) == [False]
    assert needed([tool_call("true"), "I cannot."], *TOOLS) == [True]
    assert needed(["I cannot."], *TOOLS, "rollout.artefact=/workspace/s.py") == [True]


def test_failures_and_trust_are_shares_of_what_was_graded() -> None:
    def made(verdict: Verdict, *, used: bool = True) -> Rollout:
        return Rollout(Row(0, (1,), "", "", {}), verdict=verdict, used_sandbox=used)

    isolated, shared = (Verdict(Outcome.PASSED, 1.0, trust=t) for t in ("isolated", "shared"))
    infra = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "the daemon is away")
    members = [made(isolated)] * 3 + [made(shared), made(shared, used=False), made(infra)]
    found = batch_metrics(Batch(finished=[Group(0, tuple(members))]), 0)
    assert (found["infra_failed_rate"], found["trust/shared"]) == (0.2, 0.25)


@pytest.mark.parametrize(
    ("number", "heard"), [(signal.SIGINT, True), (signal.SIGHUP, True), (signal.SIGHUP, False)]
)
def test_a_signal_ends_a_run_in_order_but_a_closed_terminal_not_under_nohup(
    number: signal.Signals, heard: bool
) -> None:
    before = signal.signal(number, signal.getsignal(number) if heard else signal.SIG_IGN)
    try:
        with Stop() as stop:
            signal.raise_signal(number)
            assert stop.signal == (number if heard else 0)
    finally:
        signal.signal(number, before)


def test_a_repeated_signal_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        monkeypatch.setattr(sampling, "_AT_ONCE", -1.0)  # as if some time had passed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("retries", [0, 6])
def test_injected_failures_reach_the_graders_and_retries_make_up_for_them(retries: int) -> None:
    grader, provider = HostCompare(limits=Limits(retries=retries)), Failing(0.2)
    task = {"entry_point": "f", "cases": [{"args": [1], "expected": 1}]}
    with grading_session(grader, provider, max_concurrency=2) as session:

        async def graded() -> list[Verdict]:
            codes = [f"def f(x): return x + {number % 2}" for number in range(40)]
            return await asyncio.gather(*[grader.grade(session, code, task) for code in codes])

        verdicts = Operation(graded()).result(120)
    assert provider.lost
    failed = [each.outcome is Outcome.INFRA_ERROR for each in verdicts]
    assert sum(failed) == 0 if retries else sum(failed) >= provider.lost
    for verdict, right, lost in zip(
        verdicts, [Outcome.PASSED, Outcome.FAILED] * 20, failed, strict=True
    ):
        assert verdict.outcome is (Outcome.INFRA_ERROR if lost else right)
        assert (verdict.reward is None) is lost
