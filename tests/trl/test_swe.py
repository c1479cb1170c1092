"""SWE tasks as environments, in TRL's own trainer and by direct calls."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.swe import SweConfig, Task, load_tasks
from sandboxkit.integrations.trl import EnvironmentReward, SandboxRollouts, SweEnvironments
from tests.strangers.tasks import write
from tests.trl.tiny import call, rates, rewards, train

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds
CHANGE = {"old_str": "left", "new_str": "right"}
TURNS = (
    call("str_replace_editor", command="create", path="/workspace/answer", file_text="left"),
    call("str_replace_editor", command="str_replace", path="/workspace/answer", **CHANGE),
    call("bash", command="cat answer; ls -d /tests"),
    call("submit"),
    "done",
)


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Task]:
    for name in ("a", "b"):
        files = {"instruction.md": f"task {name}", "tests/test.sh": 'test "$(cat answer)" = right'}
        write(tmp_path / "tasks" / name, **files)
    return load_tasks(tmp_path / "tasks")


@pytest.fixture
def environments(tasks: dict[str, Task]) -> Iterator[SweEnvironments]:
    with SweEnvironments(tasks, SweConfig(error_penalty=0.25), provider="local") as made:
        yield made


def graded(*rollouts: Any) -> list[float | None]:
    prompts = [str(number) for number in range(len(rollouts))]
    reward = EnvironmentReward(max_infra_failed_rate=1.0)
    return reward(prompts, ["c"] * len(rollouts), environments=rollouts)


@pytest.mark.parametrize("mode", ["environment_factory", "rollout_func"])
def test_a_trainer_works_on_tasks(environments: SweEnvironments, tmp_path: Path, mode: str) -> None:
    factory = environments if mode == "environment_factory" else SandboxRollouts(environments)
    training = train(tmp_path, factory, TURNS, environments.rows() * 8, max_completion_length=3000)
    # One call is an error: there are no tests where the agent works.
    assert rewards(training) == [0.75] * 16
    assert rates(training, 1) == [0.0]
    assert (environments.metrics.submitted, environments.metrics.passed) == (16, 16)
    output = str(training._logs["completion"][0])
    assert "created /workspace/answer" in output
    assert "No such file" in output


def test_rollouts_of_every_end_are_graded(environments: SweEnvironments) -> None:
    right, wrong, early, unasked = (environments() for _ in range(4))
    for rollout in (right, wrong, early, unasked):
        rollout.reset(task_id="a", prompt="unused")
    assert right.bash("echo right > answer") == "(no output)"
    assert right.submit() == "submitted"
    assert right.bash("echo wrong > answer") == "ERROR: the episode is over"
    assert right.submit() == "ERROR: the episode is over"
    wrong.bash("echo wrong > answer")  # and stops without submitting
    early.bash("echo right > answer")
    assert early.bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT") == "submitted"
    assert early.bash("true") == "ERROR: the episode is over"
    assert graded(right, wrong, early, unasked) == [1.0, 0.0, 1.0, 0.0]
    right.reset(task_id="b")
    assert "No such file" in right.bash("cat answer")


def test_rewards_may_be_told_to_trl(tasks: dict[str, Task]) -> None:
    with SweEnvironments(tasks, provider="local", get_reward=True) as environments:
        rollout: Any = environments()
        rollout.reset(task_id="a")
        rollout.bash("echo right > answer")
        assert [rollout.get_reward() for _ in range(2)] == [1.0, 1.0]


def test_a_row_needs_a_task(environments: SweEnvironments, tasks: dict[str, Task]) -> None:
    rollout = environments()
    with pytest.raises(ConfigurationError, match="not reset"):
        rollout.bash("true")
    for row in ({}, {"task_id": "c"}):
        with pytest.raises(ConfigurationError, match="is no task; there are a, b"):
            rollout.reset(**row)
    with pytest.raises(ConfigurationError, match="no tasks"):
        SweEnvironments({}, provider="local")
