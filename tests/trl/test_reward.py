"""SandboxReward and CombinedReward as TRL calls them, in its own trainer and in an outage; what is kept of rollouts."""

import asyncio
import contextlib
import pickle
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sandboxkit import (
    CapacityError,
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    Session,
)
from sandboxkit.integrations import trl
from sandboxkit.integrations._service import within
from sandboxkit.integrations._training import records, show
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict
from sandboxkit.integrations.trl import CombinedReward, SandboxEnvironments, SandboxReward
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Diagnosis
from tests.trl import tiny
from tests.trl.graders import Broken, Hangs, Length, Refusing, Sometimes, whole
from tests.trl.tiny import TURNS, call, judge, rates, train, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of many kinds
BATCHES = tomllib.loads((Path(__file__).parent / "batches.toml").read_text())["batch"]
PLAIN = [{"prompt": f"write {number}"} for number in range(16)]
Make = Callable[..., SandboxReward]
SLEEPS = "import time\ndef f(x): time.sleep(600)"
ADD = "def add(a, b): return a + b"


@pytest.fixture
def reward() -> Iterator[Make]:
    """Make rewards with a fake provider, which are closed after the test."""
    made: list[SandboxReward] = []

    def make(grader: Any, **options: Any) -> SandboxReward:
        given = {"provider": FakeProvider(), "extract": whole, **options}
        made.append(SandboxReward(grader, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_batch_is_graded_in_order_and_duplicates_once(reward: Make) -> None:
    grader = Length()
    texts = ["ab", "abc", "ab", "abcd"]
    assert reward(grader)(["p"] * 4, texts) == [1.0, 0.0, 1.0, 1.0]
    assert sorted(grader.graded) == ["ab", "abc", "abcd"]
    assert asyncio.run(reward(grader).score(["p"] * 2, ["ab", "abc"])) == [1.0, 0.0]


@pytest.mark.parametrize("failures", [0, 2, 4])
def test_a_failure_is_of_one_of_equal_completions_not_of_all(reward: Make, failures: int) -> None:
    grader = Sometimes(failures)
    found = reward(grader, max_infra_failed_rate=1.0)(["p"] * 5, ["ab"] * 5)
    assert found == [None] * failures + [1.0] * (5 - failures)
    assert grader.asked == failures + 1


def test_equal_code_for_different_tasks_is_graded_twice(reward: Make) -> None:
    subject = reward(Broken(), max_infra_failed_rate=1.0)
    assert subject([*"pqr"], ["ab"] * 3, word=[*"axy"]) == [None, 1.0, 1.0]


def test_conversational_completions_are_read_and_banned_names_cost_the_reward() -> None:
    answer = f"<answer>{ADD}</answer>"
    texts = [answer, answer.replace("+", "-"), "no idea", answer.replace("a + b", "sum((a, b))")]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    tests, banned = [["assert add(2, 3) == 5"]] * 4, [[], [], [], ["sum"]]
    with contextlib.closing(SandboxReward(HostCompare(), provider="local")) as subject:
        found = subject(["p"] * 4, completions, test_list=tests, banned_patterns=banned)
        assert found == [1.0, 0.0, 0.0, 0.0]


def test_what_happened_is_logged(reward: Make) -> None:
    metrics: dict[str, float] = {}
    columns: dict[str, list[Any]] = {}
    given: dict[str, Any] = {"trainer_state": object(), "completion_ids": [[1]] * 4}
    given |= {"log_metric": metrics.__setitem__, "log_extra": columns.__setitem__}
    reward(Broken())(["p"] * 4, ["good", "bad", "fine", "fair"], word=["bad"] * 4, **given)
    assert (metrics["infra_failed_rate"], metrics["no_code"]) == (0.25, 0.0)
    assert metrics["outcome/passed"] == 0.75
    assert columns["outcome"] == ["passed", "infra_error", "passed", "passed"]
    assert columns["detail"][1] == "no capacity"


def test_a_first_batch_without_code_is_logged(
    reward: Make, caplog: pytest.LogCaptureFixture
) -> None:
    subject = reward(Broken(), extract=lambda text: None)
    for texts in (["prose", "prose"], ["prose", "prose"]):
        assert subject(["p"] * 2, texts) == [0.0, 0.0]
    assert caplog.text.count("pass extract=") == 1


def test_a_grader_that_hangs_is_given_up(reward: Make) -> None:
    with pytest.raises(ProviderUnavailableError, match=r"not graded within deadline=0.5 s"):
        reward(Hangs(), deadline=0.5)(["p"], ["ab"])


@pytest.mark.timeout(200)
def test_a_batchs_longest_time_is_logged(reward: Make, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(timeout=1, wall=4)
    with caplog.at_level("INFO", logger="sandboxkit.integrations._training"):
        subject = reward(HostCompare(limits), provider="local", pool=2)
        tests = [["assert add(1, 1) == 2"]] * 4
        assert subject([""] * 4, [ADD] * 4, test_list=tests) == [1.0] * 4
    longest = f"{limits.longest_batch(4, 2):.0f} s"
    assert [each.message for each in caplog.records if longest in each.message]


def test_sleeping_completions_mask_none_behind_them(reward: Make) -> None:
    grader = HostCompare(Limits(timeout=1.5, wall=1.5))
    subject = reward(grader, provider="local", pool=2, deadline=9)
    texts = [f"{SLEEPS} # {number}" for number in range(16)] + ["def f(x): return x + 1"] * 4
    prompts, cases = [str(number) for number in range(20)], [[{"args": [1], "expected": 2}]] * 20
    found = subject(prompts, texts, entry_point=["f"] * 20, cases=cases)
    assert found == [0.0] * 16 + [1.0] * 4


@pytest.mark.timeout(200)
def test_a_completion_that_sleeps_in_each_case_does_not_excuse_itself(reward: Make) -> None:
    grader = HostCompare(Limits(timeout=0.6, wall=0.6), partial=True)
    subject = reward(grader, provider="local", pool=1, deadline=6)
    cases = [{"args": [number], "expected": number + 1} for number in range(16)]
    assert subject(["p"], [SLEEPS], entry_point=["f"], cases=[cases]) == [0.0]


def test_the_graders_runs_end_before_the_deadline_of_a_sample() -> None:
    grader = HostCompare()
    assert within(grader, 60.0).limits.deadline == 60.0
    assert within(grader, 1000.0) is grader
    assert grader.limits.deadline == 900.0


def test_the_reward_can_be_pickled_and_named_or_its_unpicklable_part_is_named() -> None:
    subject = SandboxReward(Length(), provider="local", extract=whole, name="mbpp")
    copy = pickle.loads(pickle.dumps(subject))
    with contextlib.closing(copy):
        assert copy.__name__ == "mbpp"
        assert copy(["p"], ["ab"]) == [1.0]
    with pytest.raises(ConfigurationError, match="because of its extract <function"):
        pickle.dumps(SandboxReward(Length(), extract=lambda text: text))


@pytest.mark.parametrize(
    ("name", "value"), [("deadline", 0.0), ("max_infra_failed_rate", 2.0), ("check_tasks", "no")]
)
def test_options_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}={value!r}"):
        SandboxReward(Length(), **{name: value})


@pytest.mark.parametrize(
    ("grader", "provider", "says"),
    [
        (Length, None, r"grader=the class Length is no grader: give an object such as Length\(\)"),
        (len, None, r"is no grader: give an object such as HostCompare\(\), or .*'async def grade"),
        (Length(), "dokcer", r"unknown provider 'dokcer' \(did you mean 'docker'\?\)"),
    ],
)
def test_what_grades_nothing_is_refused_at_once(grader: Any, provider: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        SandboxReward(grader, provider=provider)


class Returns:
    """Returns something at once, or an operation, or is awaited as a coroutine."""

    def __init__(self, value: Any, how: Callable[[Any], Any]) -> None:
        self.value, self.how = value, how

    def grade(self, session: Session, submission: str, task: Any) -> Any:
        return self.how(self.value)


async def later(value: Any) -> Any:
    return value


def test_a_grader_may_be_a_coroutine_function_or_return_an_operation(reward: Make) -> None:
    for how in (later, lambda value: Operation(later(value))):
        assert reward(Returns(Verdict(Outcome.PASSED, 1.0), how))(["p"], ["ab"]) == [1.0]


@pytest.mark.parametrize("how", [later, lambda value: value])
def test_a_grader_that_returns_no_verdict_is_named(reward: Make, how: Any) -> None:
    says = r"Returns\.grade\(\) returned 0\.5: write 'async def grade\("
    with pytest.raises(ConfigurationError, match=says):
        reward(Returns(0.5, how))(["p"], ["ab"])


def short(completions: list[str], **_: Any) -> list[float]:
    return [1.0 / len(text) for text in completions]


async def absent(completions: list[str], **_: Any) -> list[float | None]:
    await asyncio.sleep(0)
    return [None if "x" in text else 1.0 for text in completions]


def test_combined_rewards_are_weighted_and_none_if_any_is() -> None:
    metrics: dict[str, float] = {}
    subject = CombinedReward([short, absent], weights=[2.0, 0.5])
    found = subject(["p"] * 2, ["abcd", "wxyz"], log_metric=metrics.__setitem__)
    assert found == [2.0 / 4 + 0.5, None]
    assert metrics == {"reward/short": 0.25, "reward/absent": 1.0}
    with pytest.raises(ConfigurationError, match="1 reward functions and 2 weights"):
        CombinedReward([short], weights=[1.0, 2.0])
    with pytest.raises(ConfigurationError, match="returned 1 rewards for 2 completions"):
        CombinedReward([lambda **_: [1.0]])(["p"] * 2, ["a", "b"])


def test_references_are_checked_once(reward: Make, caplog: pytest.LogCaptureFixture) -> None:
    def checked(**options: Any) -> list[str]:
        """What is logged of the tasks for two batches, of which the second task refuses its reference."""
        caplog.clear()
        subject = reward(HostCompare(), provider="local", **options)
        lines = [["assert add(1, 2) == 3", "assert add(4, 4) == 8"], ["assert add(1, 2) == 4"]]
        for _ in range(2):
            found = subject(["p", "q"], [ADD] * 2, test_list=lines, code=[ADD] * 2)
            assert found == [1.0, 0.0]
        return [each.message for each in caplog.records if "tasks checked" in each.message]

    (line,) = checked()
    assert (
        "2 tasks: 1 fine, 1 refused; 2 isolated, 0 shared; task 2 is refused: failed: add(1, 2)"
        in line
    )
    assert checked(check_tasks="off") == []
    with pytest.raises(ConfigurationError, match="task 2 is refused"):
        checked(check_tasks="raise")


@pytest.mark.parametrize("combined", [False, True])
def test_a_third_of_failures_changes_no_other_advantage(tmp_path: Path, combined: bool) -> None:
    provider = Refusing(lambda number: number % 10 in (2, 5, 8))
    subject = SandboxReward(Length(), provider=provider, extract=whole, max_infra_failed_rate=0.9)

    def length(completions: list[str], **_: Any) -> list[float]:
        return [len(text) / 100 for text in completions]

    functions = [CombinedReward([subject, length])] if combined else [subject]
    training = trainer(tmp_path, PLAIN, reward_funcs=functions, config={"max_steps": 5})
    with contextlib.closing(subject):
        training.train()
    assert provider.refused > 10
    name = training.reward_func_names[0]
    rewards = torch.tensor(list(training._logs["rewards"][name]))
    advantages = torch.tensor(list(training._logs["advantages"]))
    failed = rewards.isnan()
    assert 0.1 < failed.float().mean() < 0.5
    torch.testing.assert_close(advantages, tiny.expected_advantages(rewards), atol=1e-5, rtol=1e-4)
    assert (advantages[failed] == 0).all()
    rates = [entry["outcome/infra_error"] for entry in training.state.log_history[:-1]]
    assert len(rates) == 5
    assert sum(rates) / 5 == pytest.approx(provider.refused / 80)
    assert rates[-1] == failed.float().mean()


def test_rollouts_are_kept_with_their_turns_calls_and_times(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with SandboxEnvironments(judge, provider="local") as environments:
        reward = trl.EnvironmentReward(records=folder)
        two: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 8}
        training = train(tmp_path, trl.SandboxRollouts(environments), TURNS, reward=reward, **two)
        assert rates(training, 2) == [0.0] * 2
        assert len(tiny.sandboxes_of(environments.session.id)) == 8, "one sandbox a rollout"
    assert records.steps(folder) == [1, 2]
    assert [row["member"] for row in records.read(folder, 2)] == list(range(8))
    found = list(records.read(folder, 1))
    row = found[3]
    assert (row["reward"], row["outcome"], row["truncated"]) == (1.0, "passed", False)
    assert [turn["role"] for turn in row["turns"]] == ["assistant", "tool"] * 3 + ["assistant"]
    tokens = row["tokens"]["policy"] + row["tokens"]["tools"]
    assert sum(turn["tokens"] for turn in row["turns"]) == tokens
    calls = [(each["turn"], each["error"]) for each in row["calls"]]
    assert calls == [(0, False), (2, False), (4, False)]
    assert row["calls"][2]["answer"] == "42\n"
    assert min(row["seconds"][part] for part in ("sampling", "start", "tools", "grading")) > 0
    logged = training.state.log_history[0]
    assert logged["outcome/passed"] == 1.0
    for part in ("sampling", "start", "tools", "grading"):
        spent = sorted(each["seconds"][part] for each in found)
        assert logged[f"rollout/{part}_seconds_p50"] == pytest.approx(spent[4], abs=1e-5)
    assert [line.split()[:3] for line in show.steps(folder)][1] == ["1", "8", "1.000"]
    best = list(show.rollouts(folder, 1, "passed", "best"))
    assert "user: fix it." in best
    assert any(line.startswith("--- assistant, ") for line in best)


def test_environments_that_trl_drives_are_kept_too(tmp_path: Path) -> None:
    with SandboxEnvironments(judge, provider=FakeProvider()) as environments:
        turns = (
            call("bash", command="echo 42 > answer"),
            call("str_replace_editor", command="view", path="x"),
            "",
        )
        train(tmp_path, environments, turns, reward=trl.EnvironmentReward(records=tmp_path))
    row, *_ = records.read(tmp_path, 1)
    assert row["reward"] == 1.0
    assert [each["turn"] for each in row["calls"]] == [0, 2]
    assert [each["error"] for each in row["calls"]] == [False, True]
    assert {turn["role"] for turn in row["turns"]} == {"assistant", "tool"}
    assert row["seconds"].keys() == {"start", "tools", "grading"}
    assert "tokens: not known" in list(show.rollouts(tmp_path, 1, None, "0.0"))


def test_graded_completions_are_kept_with_failures_and_equals(tmp_path: Path) -> None:
    subject = SandboxReward(Length(), provider=FakeProvider(), extract=whole, records=tmp_path)
    training = trainer(tmp_path, PLAIN, reward_funcs=[subject], config={"max_steps": 2})
    with contextlib.closing(subject):
        training.train()
    logged, found = training.state.log_history[0], list(records.read(tmp_path, 1))
    assert len(found) == 16
    assert sum(row["outcome"] == "passed" for row in found) / 16 == logged["outcome/passed"]
    assert {row["tokens"]["policy"] for row in found} <= set(range(1, 17))
    assert all(row["seconds"].keys() == {"queue", "grading"} for row in found if row["turns"])
    assert logged["rollout/grading_seconds_p99"] > 0
    assert {row["group"] for row in found} == {0, 1}
    assert {row["group"] for row in records.read(tmp_path, 2)} == {2, 3}


def test_a_rank_keeps_failures(reward: Make, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RANK", "1")
    output, subject = ["good", "good", "bad"], reward(Broken(), records=tmp_path)
    made = subject(["p"] * 3, output, word=["bad"] * 3, task_id=["t"] * 3)
    assert made == [1.0, 1.0, None]
    found = list(records.read(tmp_path / "rank-1", 1))
    assert [row["remembered"] for row in found] == [False, True, False]
    assert [row["reward"] for row in found] == made
    assert [row["turns"][0]["text"] for row in found] == output
    lines = list(show.rollouts(tmp_path / "rank-1", None, "infra_error", "best"))
    assert lines[0] == "step 1, rollout 0.2 (task t)"
    assert lines[1] == "reward none: infra_error, the infrastructure's failure, shared"


def test_unwritable_records_stop_no_run(reward: Make, tmp_path: Path, caplog: Any) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    with pytest.raises(ConfigurationError, match=r"records='.*file' cannot be made"):
        reward(Broken(), records=taken)
    (tmp_path / "rollouts").write_text("")
    with caplog.at_level("WARNING", "sandboxkit.trl"):
        assert reward(Broken(), records=tmp_path)(["p"], ["good"], word=["bad"]) == [1.0]
    assert "the rollouts of step 1 cannot be written" in caplog.text


class Unfit(FakeProvider):
    async def diagnose(self) -> Diagnosis:
        return Diagnosis(False, "", "no daemon", "start one")


def test_environments_say_that_a_backend_cannot_work_before_the_first_batch() -> None:
    unfit = pytest.raises(ProviderUnavailableError, match=r"no daemon\. start one")
    with SandboxEnvironments(judge, provider=Unfit()) as environments, unfit:
        environments()


def away(before: int = 0, error: type[Exception] = ProviderUnavailableError) -> Refusing:
    """A provider that makes a number of sandboxes, and from then on none."""
    return Refusing(lambda number: number >= before, error)


def code(text: str) -> str | None:
    return None if text.startswith("prose") else text


def score(grader: Any, texts: list[str], prompts: Sequence[str] = (), **options: Any) -> Any:
    """The rewards of completions, each of a prompt of its own unless these are given, and the metrics."""
    metrics: dict[str, float] = {}
    given = {"provider": FakeProvider(), "extract": code, **options}
    with contextlib.closing(SandboxReward(grader, **given)) as subject:
        asked = prompts or [str(number) for number in range(len(texts))]
        bad = ["bad"] * len(texts)
        return subject(asked, texts, word=bad, log_metric=metrics.__setitem__), metrics


def test_what_needs_no_sandbox_does_not_hide_a_dead_daemon(reward: Make) -> None:
    """Prose and a banned name say nothing of it."""
    texts = ["prose", "sorted", "def f(x): return x", "def f(x): return x + 0"]
    subject = reward(HostCompare(), provider=away(1), extract=code)
    tests, banned = [["assert f(1) == 1"]] * 4, [["sorted"]] * 4
    with pytest.raises(ProviderUnavailableError, match=r"2 of 2 .* of 4 .*no capacity"):
        subject([*"0123"], texts, test_list=tests, banned_patterns=banned)


@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case["name"])
def test_a_batch_has_rewards_and_metrics_or_stops(case: dict[str, Any]) -> None:
    grader = Sometimes(case["fails"]) if "fails" in case else Broken()
    options = {"max_infra_failed_rate": case["limit"]} if "limit" in case else {}
    stops = pytest.raises(ProviderUnavailableError, match=case.get("says"))
    with stops if "says" in case else contextlib.nullcontext():
        rewards, metrics = score(grader, case["texts"], case.get("prompts", ()), **options)
        assert rewards.count(None) == case["failed"]
        assert metrics["infra_failed_rate"] == pytest.approx(case["metrics"]["infra_failed_rate"])
        shared = None if set(case["texts"]) == {"prose"} else case["metrics"].get("trust/shared", 1)
        assert metrics.get("trust/shared") == pytest.approx(shared)


def test_a_provider_that_cannot_work_says_so_before_it_is_needed(reward: Make) -> None:
    subject = reward(Broken(), provider=(provider := away()), extract=code)
    for _ in range(2):
        with pytest.raises(ProviderUnavailableError, match="no capacity"):
            subject(["p"], ["prose"])
    provider.refuses = lambda number: False
    asked = provider.asked
    assert [subject(["p"], ["prose"]) for _ in range(3)] == [[0.0]] * 3
    assert provider.asked == asked + 1, "only the first call starts one to see whether it does"


def test_a_provider_that_is_full_works() -> None:
    assert score(Broken(), ["ab"], provider=away(error=CapacityError))[0] == [1.0]
