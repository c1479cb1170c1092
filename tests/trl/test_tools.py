"""Functions for `tools=` in TRL's own trainer, and by themselves."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, SandboxStartError
from sandboxkit.integrations.trl import SandboxReward, SandboxTools
from sandboxkit.testing import FakeProvider
from tests.trl.graders import Hanging, Length, Refusing, whole
from tests.trl.tiny import CHAT, LONG, call, sandboxes_of, script, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


def test_a_trainer_uses_tools_for_five_steps(tmp_path: Path) -> None:
    reward = SandboxReward(Length(), provider=FakeProvider(), extract=whole)
    config = {**LONG, "max_steps": 5, "per_device_train_batch_size": 8}
    with SandboxTools(provider=FakeProvider()) as tools, contextlib.closing(reward):
        options = {"tools": tools.functions, "reward_funcs": [reward], "config": config}
        training = trainer(tmp_path, CHAT, **options)
        commands = ("echo $((6 * 7))", "cat nothing; exit 3")
        script(training, *(call("bash", command=each) for each in commands), "42!!")
        training.train()
        answers = [m["content"] for m in training._logs["completion"][0] if m["role"] == "tool"]
        assert answers[0] == "42\n"
        assert answers[1].endswith("[exit status 3]")
        # What the assistant says, the empty turns of the calls with it, has an even length.
        assert list(training._logs["rewards"]["sandbox_reward"]) == [1.0] * 8
        steps = training.state.log_history[:5]
        assert [each["infra_failed_rate"] for each in steps] == [0.0] * 5
        assert [each["tools/call_frequency"] for each in steps] == [2.0] * 5
        assert [each["tools/failure_frequency"] for each in steps] == [0.0] * 5


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('\ud800')", "SyntaxError"),
        ("print('a\0b')", "SyntaxError"),
        ("#" + "x" * 300_000 + "\nprint(6 * 7)", "42"),
    ],
    ids=["half a surrogate", "a NUL", "300,000 characters"],
)
def test_code_that_no_argument_can_hold_gets_an_answer(code: str, answer: str) -> None:
    with SandboxTools(provider="local") as tools:
        assert answer in tools.python(code)


def test_each_call_has_a_sandbox_of_its_own_and_none_is_left() -> None:
    with SandboxTools(provider="local") as tools:
        assert tools.bash("touch /workspace/left; ls /workspace") == "left\n"
        assert tools.python("import os; print(os.listdir('/workspace'))") == "[]\n"
        session = tools.session.id
    assert sandboxes_of(session) == []


def test_a_long_answer_loses_its_middle_and_a_long_program_is_killed() -> None:
    with SandboxTools(provider=FakeProvider(), observation_limit=100) as tools:
        assert "characters left out" in tools.bash("seq 1000")
    for seconds in (0.5, 5.0, 25.0):  # a busy machine may not even print in the first
        with SandboxTools(provider=FakeProvider(), observation_limit=100, timeout=seconds) as tools:
            late = tools.bash("echo so far; sleep 60")
        if late.startswith("so far"):
            break
    assert late == f"so far\n\n[killed: it ran past its timeout of {seconds:g} s]"


def test_a_failure_is_tried_again_and_then_raised() -> None:
    with SandboxTools(provider=Refusing(lambda number: number != 2)) as tools:
        assert tools.bash("echo here") == "here\n"
        with pytest.raises(ProviderUnavailableError, match="no capacity"):
            tools.bash("echo here")


def test_a_sandbox_that_never_starts_is_given_up() -> None:
    never = pytest.raises(SandboxStartError, match="no sandbox")
    with SandboxTools(provider=Hanging(), timeout=0.1, start_timeout=0.1) as tools, never:
        tools.python("pass")


@pytest.mark.parametrize("name", ["timeout", "start_timeout", "observation_limit"])
def test_limits_that_make_no_sense_are_refused(name: str) -> None:
    limit: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigurationError, match=name):
        SandboxTools(provider=FakeProvider(), **limit)
