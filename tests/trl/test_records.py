"""What is kept of TRL's rollouts, as `sandboxkit grpo show` reads it, and the times that TRL logs."""

import logging
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations._training import records, show
from sandboxkit.integrations.trl import EnvironmentReward as Graded
from sandboxkit.integrations.trl import SandboxEnvironments, SandboxReward, SandboxRollouts
from sandboxkit.testing import FakeProvider
from tests.trl.graders import Broken, Length, whole
from tests.trl.tiny import TURNS, call, judge, rates, sandboxes_of, train, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


def kept(folder: Path, step: int) -> list[dict[str, Any]]:
    return list(records.read(folder, step))


def test_rollouts_are_kept_with_their_turns_calls_and_times(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with SandboxEnvironments(judge, provider="local") as environments:
        training = train(
            tmp_path,
            SandboxRollouts(environments),
            TURNS,
            reward=Graded(records=folder),
            max_steps=2,
            per_device_train_batch_size=8,
        )
        assert rates(training, 2) == [0.0] * 2
        assert len(sandboxes_of(environments.session.id)) == 8, "one sandbox a rollout"
    assert records.steps(folder) == [1, 2]
    assert [row["member"] for row in kept(folder, 2)] == list(range(8))
    row = kept(folder, 1)[3]
    assert (row["reward"], row["outcome"], row["truncated"]) == (1.0, "passed", False)
    assert [turn["role"] for turn in row["turns"]] == ["assistant", "tool"] * 3 + ["assistant"]
    assert sum(turn["tokens"] for turn in row["turns"]) == sum(row["tokens"].values())
    calls = [(each["turn"], each["error"]) for each in row["calls"]]
    assert calls == [(0, False), (2, False), (4, False)]
    assert row["calls"][2]["answer"] == "42\n"
    assert min(row["seconds"][part] for part in ("sampling", "start", "tools", "grading")) > 0
    logged = training.state.log_history[0]
    assert logged["outcome/passed"] == 1.0
    for part in ("sampling", "start", "tools", "grading"):
        spent = sorted(each["seconds"][part] for each in kept(folder, 1))
        assert logged[f"rollout/{part}_seconds_p50"] == pytest.approx(spent[4], abs=1e-5)
    assert [line.split()[:3] for line in show.steps(folder)][1] == ["1", "8", "1.000"]
    best = list(show.rollouts(folder, 1, "passed", "best"))
    assert "user: fix it." in best
    assert any(line.startswith("--- assistant, ") for line in best)


def test_environments_that_trl_drives_are_kept_too(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        turns = (call("bash", command="echo 42 > answer"), call("read_file", path="x"), "")
        train(tmp_path, environments, turns, reward=Graded(records=tmp_path))
    row = kept(tmp_path, 1)[0]
    assert row["reward"] == 1.0
    assert [each["turn"] for each in row["calls"]] == [0, 2]
    assert [each["error"] for each in row["calls"]] == [False, True]
    assert {turn["role"] for turn in row["turns"]} == {"assistant", "tool"}
    assert row["seconds"].keys() == {"start", "tools", "grading"}
    assert "tokens: not known" in list(show.rollouts(tmp_path, 1, None, "0.0"))


def test_graded_completions_are_kept_with_failures_and_equals(tmp_path: Path) -> None:
    rows = [{"prompt": f"write {number}"} for number in range(16)]
    subject = SandboxReward(Length(), provider=FakeProvider(), extract=whole, records=tmp_path)
    training = trainer(tmp_path, rows, reward_funcs=[subject], config={"max_steps": 2})
    try:
        training.train()
    finally:
        subject.close()
    logged, found = training.state.log_history[0], kept(tmp_path, 1)
    assert len(found) == 16
    assert sum(row["outcome"] == "passed" for row in found) / 16 == logged["outcome/passed"]
    assert {row["tokens"]["policy"] for row in found} <= set(range(1, 17))
    assert all(row["seconds"].keys() == {"queue", "grading"} for row in found if row["turns"])
    assert logged["rollout/grading_seconds_p99"] > 0
    assert {row["group"] for row in found} == {0, 1}
    assert {row["group"] for row in kept(tmp_path, 2)} == {2, 3}


def test_a_rank_keeps_failures_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    reward = SandboxReward(Broken(), provider=FakeProvider(), extract=whole, records=tmp_path)
    output = ["good", "good", "bad"]
    assert reward(["p"] * 3, output, word=["bad"] * 3, task_id=["t"] * 3) == [1.0, 1.0, None]
    reward.close()
    rows = kept(tmp_path / "rank-1", 1)
    assert [row["remembered"] for row in rows] == [False, True, False]
    assert [row["reward"] for row in rows] == [1.0, 1.0, None]
    assert [row["turns"][0]["text"] for row in rows] == output
    lines = list(show.rollouts(tmp_path / "rank-1", None, "infra_error", "best"))
    assert lines[0] == "step 1, rollout 0.2 (task t)"
    assert lines[1] == "reward none: infra_error, the infrastructure's failure, shared"


def test_unwritable_records_stop_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(ConfigurationError, match=r"records='.*file' cannot be made"):
        SandboxReward(Broken(), provider=FakeProvider(), records=taken)
    (tmp_path / "rollouts").write_text("")
    reward = SandboxReward(Broken(), provider=FakeProvider(), extract=whole, records=tmp_path)
    with caplog.at_level(logging.WARNING, "sandboxkit.trl"):
        assert reward(["p"], ["good"], word=["bad"]) == [1.0]
    reward.close()
    assert "the rollouts of step 1 cannot be written" in caplog.text
