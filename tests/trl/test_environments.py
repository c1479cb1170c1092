"""Environments in TRL's own trainer, in SandboxRollouts as its rollout_func, and by themselves."""

import asyncio
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit import ConfigurationError, Operation, ProviderUnavailableError, Sandbox, SandboxSpec
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxRollouts
from sandboxkit.integrations.trl import _environment as environment
from sandboxkit.terminal import _managed
from sandboxkit.testing import FakeProvider
from tests.trl import tiny
from tests.trl.graders import Hanging, Refusing
from tests.trl.tiny import TURNS, call, judge, rates, rewards, script, train, trainer

EPISODES = tomllib.loads((Path(__file__).parent / "episodes.toml").read_text())["episode"]
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


def test_environments_give_tools_and_rewards_and_begin_rollouts_afresh(tmp_path: Path) -> None:
    turns = (call("bash", command="ls"), *TURNS)
    with SandboxEnvironments(judge, provider="local") as environments:
        training = train(tmp_path, environments, turns, max_steps=2)
        assert rewards(training) == [1.0] * 16
        replies = [[turn["content"] for turn in each] for each in training._logs["completion"]]
        for reply in replies:
            assert reply[1] == "(no output)", "no rollout sees the answer of the one before"
            assert "wrote 2 bytes to /workspace/answer" in reply[3]
            assert "edited /workspace/answer" in reply[5]
            assert "42" in reply[7]
        session = environments.session.id
        assert len(tiny.sandboxes_of(session)) == 16, "one sandbox a rollout"
    assert tiny.sandboxes_of(session) == []


def test_a_third_of_dying_sandboxes_changes_no_other_advantage(tmp_path: Path) -> None:
    turns = (call("bash", command="echo $((RANDOM % 2 + 41)) > answer"), "done")
    with SandboxEnvironments(judge, provider=tiny.Dying()) as environments:
        reward = EnvironmentReward(max_infra_failed_rate=0.9)
        training = train(tmp_path, SandboxRollouts(environments), turns, reward=reward, max_steps=5)
    found = torch.tensor(rewards(training))
    advantages = torch.tensor(list(training._logs["advantages"]))
    failed = found.isnan()
    assert failed.any()
    assert (advantages[failed] == 0).all()
    torch.testing.assert_close(advantages, tiny.expected_advantages(found), atol=1e-5, rtol=1e-4)
    logged = rates(training, 5)
    assert sum(logged) / 5 == pytest.approx(26 / 80)
    assert logged[-1] == failed.float().mean()


def test_a_sandbox_that_cannot_be_made_gives_no_reward_and_is_logged(tmp_path: Path) -> None:
    """Every third is refused, and whatever is tried again."""
    provider = Refusing(lambda number: number >= 16 or number % 3 == 2)
    with SandboxEnvironments(judge, provider=provider) as environments:
        training = train(tmp_path, environments, (call("bash", command="echo 42 > answer"), "done"))
        found = torch.tensor(rewards(training))
        assert found.isnan().sum() == 5
        assert found.nansum() == 11
        assert rates(training, 1) == [pytest.approx(5 / 16)]
        assert training.state.log_history[0]["outcome/passed"] == pytest.approx(11 / 16)


def test_sandboxes_of_which_none_starts_end_the_batch() -> None:
    with SandboxEnvironments(judge, provider=Hanging(), start_timeout=0.1) as environments:
        rollouts = [environments(), environments()]
        for rollout in rollouts:
            rollout.reset(want="42")
        assert "does not count" in rollouts[0].bash("true")
        reward = EnvironmentReward(max_infra_failed_rate=1.0)
        with pytest.raises(ProviderUnavailableError, match=r"2 of 2 .* start_timeout=0.1 s"):
            reward(["p", "q"], ["c", "c"], environments=rollouts)


def test_a_judge_that_hangs_is_given_up() -> None:
    async def hangs(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    with SandboxEnvironments(hangs, provider=FakeProvider()) as environments:
        rollout = environments()
        rollout.reset()
        reward = EnvironmentReward(deadline=0.2, max_infra_failed_rate=1.0)
        with pytest.raises(ProviderUnavailableError, match=r"1 of 1 .* within deadline=0.2 s"):
            reward(["p"], ["c"], environments=[rollout])


def test_the_reward_needs_environments() -> None:
    with pytest.raises(ConfigurationError, match="1 completions and 0 environments"):
        EnvironmentReward()(["p"], ["c"])


@pytest.mark.parametrize("case", EPISODES, ids=lambda case: case["name"])
def test_an_episode_is_answered_and_graded(case: dict[str, Any]) -> None:
    options = case.get("options", {})
    with SandboxEnvironments(judge, provider=FakeProvider(), **options) as environments:
        rollout = environments()
        rollout.reset(want=case.get("want"))
        for each in case["calls"]:
            output = getattr(rollout, each["tool"])(*each["given"])
            assert output.startswith(each.get("begins", "")), output
            assert output.endswith(each.get("ends", "")), output
            assert each.get("has", "") in output
        if "reward" in case:
            found = EnvironmentReward()(["p"], ["c"], environments=[rollout])
            assert found == [case["reward"]]
        # Any tokenizer can read the answer.
        assert rollout.read_file("/workspace/\udcff").encode().startswith(b"error: ")


def test_files_of_a_row_that_a_sandbox_does_not_take_are_not_the_models_failure() -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        used, idle = environments(), environments()
        for rollout in (used, idle):
            rollout.reset(want="42", files={"/proc/none": "x"})
        assert "does not count" in used.bash("true")
        for rollout in (used, idle):
            verdict, reward = Operation(rollout._grade()).result()
            assert (verdict.attributable_to, reward) == ("infra", None)


@pytest.mark.parametrize("odd", [10**12, None, True, ["a"], {"b": 1}, "\ud800", "a\0b"])
def test_arguments_of_any_type_are_the_models_mistake(odd: Any) -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        rollout = environments()
        rollout.reset(want="42")
        outputs = [rollout.bash(odd), rollout.read_file(odd), rollout.write_file(odd, "x")]
        for output in (*outputs, rollout.edit("/workspace/f", odd, odd)):
            assert output.startswith("error: ")
        if not isinstance(odd, str):
            assert rollout.write_file("/workspace/f", odd).startswith("error: ")
        assert rollout.bash("printf '%s' fine") == "fine"


def shown(rollout: Any, word: str, command: str, **options: Any) -> str:
    """Run a command that goes on, and wait for the answer that has a word of its output."""
    output: str = rollout.bash(command, **options)
    while word not in output:
        assert "still running" in output
        output = rollout.bash("")
    return output


def test_a_rollouts_shell_lasts_and_ends_before_it_is_graded() -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        rollout, other = environments(), environments()
        for each in (rollout, other):
            each.reset(want="42")
        rollout.bash("mkdir deep; cd deep; secret=42; show() { echo $secret in $PWD; }")
        assert rollout.bash("show") == "42 in /workspace/deep\n"
        assert "command not found" in other.bash("show")
        assert rollout._bash is not None
        rollout._bash._timeout = 1.0
        output = shown(rollout, "so far", "echo so far; read -r line; echo got $line; sleep 600")
        assert output.startswith("so far\n")
        assert "still running" in output
        assert shown(rollout, "got", "this", as_input=True).startswith("got this\n")
        rollout._bash._timeout = 60.0
        assert "[exit status 130" in rollout.bash("C-c")
        rollout.bash("echo 42 > ../answer; while :; do echo 0 > ../answer; sleep 1; done & :")
        rollout.write_file("/workspace/answer", "42")
        assert EnvironmentReward()(["p"], ["c"], environments=[rollout]) == [1.0]
        rollout.reset(want="42")
        assert "command not found" in rollout.bash("show")


def test_a_rollout_that_breaks_its_shell_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment._SHELL_GRACE > 4 * (_managed.START_SECONDS + _managed.CALL_SECONDS)
    monkeypatch.setattr("sandboxkit.integrations.trl._environment._GRACE", 0.1)
    with SandboxEnvironments(judge, provider="local", timeout=0.2) as environments:
        rollout = environments()
        rollout.reset()
        output = rollout.bash("cd /tmp/.sandboxkit-*; rm -f command; mkfifo command")
        while "still running" in output:
            output = rollout.bash("")
        # The rest in proportion.
        monkeypatch.setattr("sandboxkit.terminal._shell.CALL_SECONDS", 0.5)
        assert rollout.bash("true").startswith("error: the command was not started")
        assert EnvironmentReward()(["p"], ["c"], environments=[rollout]) == [0.0]


def test_resetting_does_not_wait_for_the_sandbox(tmp_path: Path) -> None:
    reset_all = threading.Event()

    class Slow(FakeProvider):
        async def create(self, spec: SandboxSpec) -> str:
            while not reset_all.is_set():
                await asyncio.sleep(0.01)
            return await super().create(spec)

    with SandboxEnvironments(judge, provider=Slow()) as environments:
        rollouts = [environments() for _ in range(8)]
        for rollout in rollouts:
            rollout.reset(want="42")
        reset_all.set()
        for rollout in rollouts:
            assert rollout.bash("echo 42 > answer") == "(no output)"
        rewards = EnvironmentReward()(["p"] * 8, ["c"] * 8, environments=rollouts)
        assert rewards == [1.0] * 8


TRAININGS = tomllib.loads((Path(__file__).parent / "trainings.toml").read_text())["training"]


def test_the_tokens_are_those_of_environment_mode(tmp_path: Path) -> None:
    def tokens(**options: Any) -> list[Any]:
        options |= {"reward_funcs": [EnvironmentReward()], "config": tiny.LONG}
        training = trainer(tmp_path, tiny.CHAT, **options)
        script(training, *TURNS)
        seen, generate = list[Any](), training._generate

        def record(prompts: list[Any]) -> Any:
            made = generate(prompts)
            seen.extend(made[:3])  # of prompts and completions, and which the model wrote
            return made

        training._generate = record
        training.train()
        return seen

    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        theirs = tokens(environment_factory=environments)
        ours = tokens(rollout_func=SandboxRollouts(environments))
    assert ours == theirs
    assert 0 in ours[2][0]


def test_log_probabilities_are_kept_for_what_the_model_wrote(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        rollouts = SandboxRollouts(environments)
        graded = {"reward_funcs": [EnvironmentReward()], "config": tiny.LONG}
        training = trainer(tmp_path, tiny.CHAT, rollout_func=rollouts, **graded)
        script(training, call("bash", command="true"), "done")
        say = training._generate_single_turn

        def with_logprobs(prompt_ids: list[Any], *_: Any, **options: Any) -> tuple[Any, Any]:
            ids, _none = say(prompt_ids, **options)
            return ids, [[-1.0] * len(each) for each in ids]

        training._generate_single_turn = with_logprobs
        made = training.rollout_func([tiny.CHAT[0]["prompt"]] * 2, training)
        columns = made["completion_ids"], made["env_mask"], made["logprobs"]
        for ids, mask, logprobs in zip(*columns, strict=True):
            assert len(ids) == len(mask)
            assert logprobs == [-1.0 if wrote else 0.0 for wrote in mask]
            assert 0 in mask


def test_each_prompt_gets_its_own_row(tmp_path: Path) -> None:
    said = [[{"role": "user", "content": f"say {number}"}] for number in range(2)]
    rows = [{"prompt": prompt, "want": str(number)} for number, prompt in enumerate(said)]
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        turns = (call("bash", command="echo 1 > answer"), "done")
        found = rewards(train(tmp_path, SandboxRollouts(environments), turns, rows))
        assert sorted(found) == [0.0] * 8 + [1.0] * 8


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: case["name"])
def test_a_training_gives_its_rollouts_answers_and_rewards(tmp_path: Path, case: Any) -> None:
    turns = [t if isinstance(t, str) else call(**t) for t in case["turns"]]
    provider = tiny.Meeting(case["meeting"]) if "meeting" in case else FakeProvider()
    options = case.get("options", {})
    with SandboxEnvironments(judge, provider=provider, **options) as environments:
        mode = SandboxRollouts(environments) if "mode" in case else environments
        reward = False if options else None
        training = train(tmp_path, mode, turns, reward=reward, **case.get("config", {}))
        names = {"name": "RewardedSandboxEnvironment"} if options else {}
        assert rewards(training, **names) == [case["reward"]] * 16
        shown = str(training._logs["completion"][0])
        assert [part for part in case.get("has", ()) if part not in shown.replace("\\'", "'")] == []
        assert case.get("lacks", "no such") not in shown
        if options:
            with pytest.raises(ConfigurationError, match="count twice"):
                EnvironmentReward()(["p"], ["c"], environments=[environments()])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([tiny.CHAT[0], {**tiny.CHAT[0], "want": "43"}], "two rows differ and have the same"),
        ([{"prompt": "fix it.", "want": "42"}] * 16, "prompts that are messages"),
    ],
)
def test_prompts_of_text_or_not_told_apart_are_refused(
    tmp_path: Path, rows: Any, said: str
) -> None:
    refused = pytest.raises(ConfigurationError, match=said)
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments, refused:
        train(tmp_path, SandboxRollouts(environments), (), rows)
