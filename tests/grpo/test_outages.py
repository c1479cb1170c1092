"""An outage of the backend ends a run with a reason, and what needed no sandbox is not asked."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandboxkit import ProviderUnavailableError, Session
from sandboxkit.integrations.grpo import sampling
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.metrics import batch_metrics
from sandboxkit.integrations.grpo.program import FAILED
from sandboxkit.integrations.grpo.rollout import Group, Rollout
from sandboxkit.integrations.grpo.sampling import Sampling, Stop
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import SandboxSpec
from tests.grpo.test_rollout import BLOCK, END, TASK, Script, rollouts, row, run, tool_call
from tests.grpo.tiny import chat_tokenizer


class Dying(LocalProvider):
    """Makes so many sandboxes, and from then on none."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.left = before

    async def create(self, spec: SandboxSpec) -> str:
        if self.left == 0:
            raise ProviderUnavailableError("the daemon died")
        self.left -= 1
        return await super().create(spec)


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


def test_a_dead_daemon_is_not_the_score_of_the_held_out_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps({"prompt": "ask", **TASK}) + "\n") * 4)
    given = ["model.name=m", f"data.train={path}", f"data.held_out={path}"]
    config = read(None, [*given, "grading.options={limits={retries=0}}", "grading.patience=0"])
    words = chat_tokenizer()
    engine = Script(words, ["I cannot.", BLOCK])
    with Session(Dying(before=0)) as session:
        subject = Sampling(config, words, {END}, engine, session, Stop(), 0)
        try:
            with pytest.raises(ProviderUnavailableError, match=r"2 of 2 held-out .*daemon died"):
                subject.evaluate()
        finally:
            subject.close()


def test_held_out_rows_are_sampled_several_times_or_written_greedily(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "ask", **TASK}) + "\n")
    words = chat_tokenizer()

    def evaluated(count: int) -> tuple[dict[str, float], list[float]]:
        given = ["model.name=m", f"data.train={path}", f"data.held_out={path}"]
        config = read(None, [*given, f"run.evaluate_samples={count}", "rollout.temperature=0.7"])
        engine = Script(words, ["I cannot.", BLOCK])
        with Session("local") as session:
            subject = Sampling(config, words, {END}, engine, session, Stop(), 0)
            try:
                return subject.evaluate(), [request.temperature for request in engine.seen]
            finally:
                subject.close()

    assert evaluated(0) == ({"held_out": 0.0}, [0.0])
    rates, temperatures = evaluated(4)
    assert temperatures == [0.7] * 4
    wanted = {"held_out": 0.5, "held_out/pass@2": 5 / 6, "held_out/pass@4": 1.0}
    assert rates == pytest.approx(wanted)


def needed(texts: Sequence[str], *more: str, count: int = 1) -> list[bool]:
    with Session("local", max_concurrency=4) as session:
        made = run(rollouts(session, texts, *more)[0], row(), count)
    assert None not in {rollout.verdict.reward for rollout in made}
    return [rollout.needed_sandbox for rollout in made]


def test_samples_that_needed_a_sandbox_are_known() -> None:
    tools = ["rollout.max_turns=3", "rollout.max_completion_tokens=1000"]
    assert needed(["I cannot."]) == [False]
    assert needed([BLOCK]) == [True]
    assert sorted(needed([BLOCK], count=3)) == [False, False, True], "the others remember"
    assert needed(["I cannot."], *tools) == [False]
    assert needed([tool_call("true"), "I cannot."], *tools) == [True]
    assert needed(["I cannot."], *tools, "rollout.artefact=/workspace/s.py") == [True]


def test_what_could_not_be_graded_needed_a_sandbox() -> None:
    with Session(Dying(before=0)) as session:
        tools = "rollout.max_turns=2"
        made = run(rollouts(session, [tool_call("true")], tools)[0], row())
        assert [(rollout.verdict.reward, rollout.needed_sandbox) for rollout in made] == [
            (None, True)
        ]


def test_failures_and_trust_are_shares_of_what_was_graded() -> None:
    def made(verdict: Verdict, *, used: bool = True) -> Rollout:
        return Rollout(Row(0, (1,), "", "", {}), verdict=verdict, used_sandbox=used)

    isolated, shared = (Verdict(Outcome.PASSED, 1.0, trust=t) for t in ("isolated", "shared"))
    infra = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "the daemon is away")
    members = [made(isolated)] * 3 + [made(shared), made(shared, used=False), made(infra)]
    found = batch_metrics(Batch(finished=[Group(0, tuple(members))]), 0)
    assert (found["infra_failed_rate"], found["trust/shared"]) == (0.2, 0.25)


def test_a_repeated_signal_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        monkeypatch.setattr(sampling, "_AT_ONCE", -1.0)  # as if some time had passed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_closed_terminal_ends_a_run_in_order_but_not_under_nohup() -> None:
    with Stop() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.signal == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.signal
    finally:
        signal.signal(signal.SIGHUP, before)
