"""Environments in TRL's own trainer, in SandboxRollouts as its rollout_func, and by themselves."""

import asyncio
import json
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import get_json_schema

from sandboxkit import ConfigurationError, Operation, ProviderUnavailableError, Sandbox, SandboxSpec
from sandboxkit.integrations._tools import SCHEMAS
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.swe import load_tasks
from sandboxkit.integrations.trl import (
    EnvironmentReward,
    SandboxEnvironments,
    SandboxRollouts,
    SweEnvironments,
)
from sandboxkit.integrations.trl import _environment as environment
from sandboxkit.integrations.trl._rollout import tools_of
from sandboxkit.provider import FirstCommand
from sandboxkit.terminal import _managed
from sandboxkit.testing.fake import FakeBox, FakeProvider
from tests.data_here import beside
from tests.strangers.tasks import write
from tests.swe import test_tools
from tests.trl import tiny
from tests.trl.graders import Hanging, Refusing
from tests.trl.tiny import TURNS, call, judge, rates, rewards, script, train, trainer

NAMES = [schema["function"]["name"] for schema in SCHEMAS]
MISTAKES = beside(test_tools.__file__)["mistakes"]
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds


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


def test_a_sandbox_that_is_lost_during_its_rollout_gives_no_reward() -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        rollout = environments()
        rollout.reset(want="42")
        assert rollout.bash("echo 42 > answer") == "(no output)"
        assert rollout._sandbox is not None
        rollout._sandbox.stop().result()
        assert "does not count" in rollout.bash("true")
        assert Operation(rollout._grade()).result()[1] is None


@pytest.mark.parametrize("number", [2, 3], ids=["SandboxEnvironments", "SweEnvironments"])
def test_each_environment_offers_the_same_tools_and_texts(tmp_path: Path, number: int) -> None:
    write(tmp_path / "a", **{"instruction.md": "", "tests/test.sh": ""})
    environments: Any = SandboxEnvironments(judge, provider="local")
    if number == 3:
        environments = SweEnvironments(load_tasks(tmp_path), provider="local")
    with environments:
        rollout = environments()
        offered = [get_json_schema(tool) for tool in tools_of(rollout)]
        assert [each["function"]["name"] for each in offered] == NAMES[:number]
        for schema, made in zip(SCHEMAS, offered, strict=False):
            # transformers leaves out both of them.
            said = {"required": [], "additionalProperties": False}
            made["function"]["parameters"] = said | made["function"]["parameters"]
            assert made == schema
        rollout.reset(task_id="a")
        rollout.bash(r"printf 'same\nsame\n' > t; printf '\377' > bin")
        for name, arguments, says in MISTAKES:
            if name in NAMES[:number] and arguments.endswith("}"):
                answer = getattr(rollout, name)(**json.loads(arguments))
                assert answer.startswith("ERROR: ")
                assert says in answer
                assert answer.encode(), "any tokenizer can read it"
        assert rollout.bash("printf '%s' fine") == "fine"


def test_the_limits_of_an_environment_are_those_of_its_tools() -> None:
    limits: dict[str, Any] = {"observation_limit": 300, "timeout": 0.5}
    with SandboxEnvironments(judge, provider=FakeProvider(), **limits) as environments:
        rollout = environments()
        rollout.reset(want="42")
        output = rollout.bash("seq 1000; sleep 60")
        while "characters left out" not in output:
            output = rollout.bash("")
        assert "[still running; a call waits up to 0.5 s" in output
        assert len(output) <= 300


def test_calls_that_take_half_of_the_lifetime_are_the_last() -> None:
    async def judged(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
        return Verdict(Outcome.FAILED, 0.0)

    with SandboxEnvironments(judged, provider="local", timeout=1, lifetime=4) as environments:
        rollout = environments()
        rollout.reset()
        rollout.bash("sleep 3")
        rollout.bash("")
        assert rollout.bash("ls") == "ERROR: the calls of this rollout have used their 2 s"
        assert EnvironmentReward()(["p"], ["c"], environments=[rollout]) == [0.0]
    short = SandboxEnvironments(judged, provider="local", timeout=3, lifetime=4)
    with short as environments, pytest.raises(ConfigurationError, match="lifetime=4 is too short"):
        environments().reset()


def test_files_of_a_row_that_a_sandbox_does_not_take_are_not_the_models_failure() -> None:
    with SandboxEnvironments(judge, provider="local") as environments:
        used, idle = environments(), environments()
        for rollout in (used, idle):
            rollout.reset(want="42", files={"/proc/none": "x"})
        assert "does not count" in used.bash("true")
        for rollout in (used, idle):
            verdict, reward = Operation(rollout._grade()).result()
            assert (verdict.attributable_to, reward) == ("infra", None)


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
        assert rollout._toolbox is not None
        shell = rollout._toolbox.bash
        shell._timeout = 1.0
        output = shown(rollout, "so far", "echo so far; read -r line; echo got $line; sleep 600")
        assert output.startswith("so far\n")
        assert "still running" in output
        assert shown(rollout, "got", "this", as_input=True).startswith("got this\n")
        shell._timeout = 60.0
        assert "[exit status 130" in rollout.bash("C-c")
        rollout.bash("echo 42 > ../answer; while :; do echo 0 > ../answer; sleep 1; done & :")
        rollout.str_replace_editor("create", "/workspace/answer", file_text="42")
        assert EnvironmentReward()(["p"], ["c"], environments=[rollout]) == [1.0]
        rollout.reset(want="42")
        assert "command not found" in rollout.bash("show")
        assert rollout.bash("ls") == "(no output)", "the next rollout begins afresh"


def test_a_rollout_that_breaks_its_shell_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment._GRACE > 4 * (_managed.START_SECONDS + _managed.CALL_SECONDS)
    with SandboxEnvironments(judge, provider="local", timeout=0.2) as environments:
        rollout = environments()
        rollout.reset()
        output = rollout.bash("cd /tmp/.sandboxkit-*; rm -f command; mkfifo command")
        while "still running" in output:
            output = rollout.bash("")
        # The rest in proportion.
        monkeypatch.setattr("sandboxkit.terminal._shell.CALL_SECONDS", 0.5)
        assert rollout.bash("true").startswith("ERROR: the command was not started")
        assert EnvironmentReward()(["p"], ["c"], environments=[rollout]) == [0.0]


def test_resetting_does_not_wait_for_the_sandbox(tmp_path: Path) -> None:
    reset_all = threading.Event()

    class Slow(FakeProvider):
        async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
            while not reset_all.is_set():
                await asyncio.sleep(0.01)
            return await super().create(spec, first)

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


async def score(sandbox: Sandbox, row: Mapping[str, Any]) -> Any:
    return 1.0


def test_a_judge_that_gives_no_verdict_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="is no coroutine function: write 'async def judge"
    ):
        SandboxEnvironments(lambda sandbox, row: judge(sandbox, row))
    with SandboxEnvironments(score, provider=FakeProvider()) as environments:
        environment = environments()
        environment.reset()
        with pytest.raises(ConfigurationError, match=r"the judge returned 1\.0: return Verdict\("):
            EnvironmentReward()(["p"], ["c"], environments=[environment])
