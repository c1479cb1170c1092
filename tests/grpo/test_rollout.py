"""Rollouts with real sandboxes: what a written policy does in them, token by token, and in an outage."""

import asyncio
import json
import signal
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from benchmarks.grpo_failures import Failing
from sandboxkit import Operation, ProviderUnavailableError, Session
from sandboxkit.integrations.grpo import sampling
from sandboxkit.integrations.grpo.buffer import Batch
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.engines import Completion, Engine, SampleRequest, Weights
from sandboxkit.integrations.grpo.metrics import batch_metrics
from sandboxkit.integrations.grpo.rollout import Group, Rollout, RolloutRunner
from sandboxkit.integrations.grpo.sampling import Sampling, Stop
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grading_session
from sandboxkit.providers.local import LocalProvider
from tests.grpo.tiny import chat_tokenizer
from tests.trl.graders import Refusing

END = 2
MISTAKES = tomllib.loads((Path(__file__).parent / "mistakes.toml").read_text())["mistake"]
TASK = {"entry_point": "f", "cases": [{"args": [2], "expected": 4}]}


class Script(Engine):
    """An engine whose policy is written down: a text for each turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts, self.seen = tokenizer, list(texts), list[SampleRequest]()

    async def generate(self, request: SampleRequest) -> Completion:
        self.seen.append(request)
        ids = self.tokenizer(self.texts[(len(self.seen) - 1) % len(self.texts)])["input_ids"]
        ids = (*ids, END)[: request.max_tokens]
        server = request.server or f"server {len(self.seen)}"
        return Completion(ids, (-0.5,) * len(ids), len(self.seen), server)

    async def score(self, ids: tuple[int, ...], server: str = "") -> tuple[float, ...]:
        return (-0.5,) * (len(ids) - 1)

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def update_weights(self, weights: Weights, version: int) -> None: ...
    def close(self) -> None: ...


class Counting:
    """HostCompare that counts what it is asked, and fails in one way or another if told to."""

    asked, given_up = 0, False

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        Counting.asked, Counting.given_up = 0, False

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        Counting.asked += 1
        match self.trouble:
            case "raises at times" if Counting.asked % 8 == 0:
                raise ZeroDivisionError("in somebody's grader")
            case "raises":
                raise ZeroDivisionError("in somebody's grader")
            case "lets through":
                raise ProviderUnavailableError("502 from a load balancer")
            case "hangs":
                await asyncio.sleep(3600)
            case "hangs once" if Counting.asked == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    Counting.given_up = True
            case "infra" | "infra twice" if Counting.asked <= 2 or self.trouble == "infra":
                return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "the daemon is away")
        return await HostCompare().grade(session, submission, task)


def tool_call(command: str) -> str:
    arguments = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>{json.dumps(arguments)}</tool_call>"


def rollouts(session: Session, texts: Sequence[str], *more: str) -> tuple[RolloutRunner, Script]:
    tokenizer = chat_tokenizer()
    engine = Script(tokenizer, texts)
    given = ["model.name=m", "data.train=t", "grading.grader=tests.grpo.test_rollout:Counting"]
    return RolloutRunner(read(None, [*given, *more]), tokenizer, {END}, engine, session), engine


def run(subject: RolloutRunner, row: Row, count: int = 1) -> list[Rollout]:
    async def all_of_them() -> list[Rollout]:
        made = await asyncio.gather(*[subject.one(row, str(n)) for n in range(count)])
        subject.close()
        return list(made)

    return Operation(all_of_them()).result(100)


def row(**task: object) -> Row:
    ids = tuple(chat_tokenizer()("ask")["input_ids"])
    return Row(0, ids, "ask", "", {**TASK, **task})


BLOCK = "```python\ndef f(x):\n    return x + 2\n```"
ARTEFACT = "rollout.artefact=/workspace/s.py"
TOOLS = ["rollout.max_turns=3", "rollout.max_completion_tokens=1000"]


def test_a_completion_is_graded_and_kept_token_by_token(session: Session) -> None:
    subject, engine = rollouts(session, [BLOCK])
    (made,) = run(subject, row())
    assert made.verdict.outcome is Outcome.PASSED
    assert tuple(made.completion) == (*engine.tokenizer(BLOCK)["input_ids"], END)
    assert set(made.mask) == {True}
    assert len(made.logp) == len(made.completion)
    assert engine.seen[0].ids == made.row.prompt
    subject, _ = rollouts(session, ["\n    return x * 2"], "rollout.submission=text")
    (made,) = run(subject, replace(row(), prefix="def f(x):"))
    assert made.verdict.outcome is Outcome.PASSED, "the prefix is graded, too"
    subject, _ = rollouts(session, ["I cannot."])
    assert run(subject, row())[0].verdict.reward == 0.0
    assert Counting.asked == 0, "without code there is nothing to grade"


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case["name"])
def test_a_mistake_scores_0_and_the_model_is_told(session: Session, case: dict[str, Any]) -> None:
    first, *others = [t if isinstance(t, str) else tool_call(t["bash"]) for t in case["turns"]]
    texts = [first * case.get("times", 1), *others]
    subject, _ = rollouts(session, texts, *TOOLS, *case.get("settings", []))
    (made,) = run(subject, row())
    assert case["says"] in subject.text(made.completion)
    assert (made.verdict.reward, made.tool_calls) == (0.0, case["calls"])
    assert len(made.completion) <= case.get("tokens", 1000)


@pytest.mark.parametrize(
    ("trouble", "rewards", "asked"),
    [("", [1.0] * 5, 1), ("infra twice", [None, None, 1.0, 1.0, 1.0], 3), ("infra", [None] * 5, 5)],
)
def test_equal_submissions_are_graded_once_and_failures_not_remembered(
    session: Session, trouble: str, rewards: list[float | None], asked: int
) -> None:
    subject, _ = rollouts(session, [BLOCK], f"grading.options={{trouble={trouble!r}}}")
    made = run(subject, row(), count=5)
    assert [each.verdict.reward for each in made] == rewards
    assert Counting.asked == asked


def test_turns_with_tools_are_joined_by_token_and_tools_carry_no_loss(session: Session) -> None:
    texts = [
        tool_call("echo 'def f(x): return x + 1' > s.py; python3 -c 'import s; print(s.f(2))'"),
        tool_call("sed -i 's/+ 1/+ 2/' s.py; cat given.txt"),
        "It is done.",
    ]
    subject, engine = rollouts(session, texts, *TOOLS, ARTEFACT)
    (made,) = run(subject, row(files={"/workspace/given.txt": "from the row"}))
    assert made.verdict.outcome is Outcome.PASSED
    assert made.tool_calls == 2
    assert [turn.server for turn in engine.seen] == ["", "server 1", "server 1"]
    answer = "\n<|start|>tool\n{}<|end|>\n<|start|>assistant\n"
    told = [answer.format(text) for text in ("3\n", "from the row")]
    said = [texts[0], told[0], texts[1], told[1], texts[2]]
    pieces = [
        (own, [*engine.tokenizer(text)["input_ids"], *([END] if own else [])])
        for own, text in zip([True, False, True, False, True], said, strict=True)
    ]
    assert made.completion == [token for _, ids in pieces for token in ids]
    assert made.mask == [own for own, ids in pieces for _ in ids]
    assert made.logp == [-0.5 if own else 0.0 for own in made.mask]
    assert made.version == 1, "the oldest weights that wrote a part"
    assert engine.seen[2].ids == made.row.prompt + tuple(made.completion[: -len(pieces[4][1])])


@pytest.mark.parametrize(
    ("trouble", "said", "raised"),
    [
        ("raises", "the grader raised ZeroDivisionError: in somebody's", True),
        ("lets through", "the grader raised ProviderUnavailableError: 502", False),
        ("hangs", "not graded within rollout.deadline=1 s", False),
        ("infra", "the daemon is away", False),
    ],
)
def test_a_graders_failure_is_no_reward(
    session: Session, trouble: str, said: str, raised: Any
) -> None:
    options = f"grading.options={{trouble={trouble!r}}}"
    deadline = f"rollout.deadline={1 if trouble == 'hangs' else 60}"
    (made,) = run(rollouts(session, [BLOCK], options, deadline)[0], row())
    assert (made.verdict.reward, made.grader_raised) == (None, raised)
    assert said in made.verdict.detail


def test_closing_gives_up_what_is_graded_and_no_longer_remembered(session: Session) -> None:
    texts = [BLOCK, BLOCK.replace("2", "3"), BLOCK.replace("2", "4")]
    options = ['grading.options={trouble="hangs once"}', "grading.remember=1"]
    subject, _ = rollouts(session, texts, *options)

    async def forget() -> None:
        first = asyncio.create_task(subject.one(row(), "0"))
        while not Counting.asked:
            await asyncio.sleep(0.01)
        for number in (1, 2):
            await subject.one(row(), str(number))
        first.cancel()
        subject.close()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(60):
            while not Counting.given_up:
                await asyncio.sleep(0.01)

    Operation(forget()).result(100)
    assert Counting.asked == 3


def test_an_engine_that_fails_is_not_taken_for_a_sandbox(session: Session) -> None:
    subject, engine = rollouts(session, [BLOCK], "rollout.max_turns=2")

    async def away(_: SampleRequest) -> Completion:
        raise RuntimeError("no engine")

    engine.generate = away  # type: ignore[method-assign,assignment] # it fails from here on
    with pytest.raises(RuntimeError, match="no engine"):
        run(subject, row())


def refusing() -> Refusing:
    return Refusing(lambda number: True)


@pytest.mark.parametrize(
    ("provider", "files", "said"),
    [(refusing, {}, "no capacity"), (LocalProvider, {"/proc/none": "x"}, "SandboxFile")],
)
def test_a_sandbox_that_cannot_be_had_masks(provider: Any, files: Any, said: str) -> None:
    with Session(provider(), max_concurrency=4) as session:
        more = ["rollout.max_turns=2", ARTEFACT]
        subject, _ = rollouts(session, [tool_call("true"), "Well."], *more)
        (made,) = run(subject, row(files=files))
    assert (made.verdict.reward, made.needed_sandbox) == (None, True)
    assert said in made.verdict.detail


def evaluated(folder: Path, provider: Any, rows: int, *more: str) -> tuple[Any, list[float]]:
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
    at_once = ("grading.options={limits={retries=0}}", "grading.patience=0")
    with pytest.raises(ProviderUnavailableError, match=r"2 of 2 held-out .*no capacity"):
        evaluated(tmp_path, refusing(), 4, *at_once)


def test_held_out_rows_are_sampled_several_times_or_written_greedily(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "local", 1, "run.evaluate_samples=0", "rollout.temperature=0.7")
    assert found == ({"held_out": 0.0}, [0.0])
    found = evaluated(tmp_path, "local", 1, "run.evaluate_samples=4", "rollout.temperature=0.7")
    rates = {"held_out": 0.5, "held_out/pass@2": 5 / 6, "held_out/pass@4": 1.0}
    assert found == (pytest.approx(rates), [0.7] * 4)


def test_samples_that_needed_a_sandbox_are_known(session: Session) -> None:
    def needed(texts: Sequence[str], *more: str, count: int = 1) -> list[bool]:
        made = run(rollouts(session, texts, *more)[0], row(), count)
        assert None not in {rollout.verdict.reward for rollout in made}
        return [rollout.needed_sandbox for rollout in made]

    assert needed(["I cannot."]) == [False]
    assert needed([BLOCK]) == [True]
    assert sorted(needed([BLOCK], count=3)) == [False, False, True], "the others remember"
    assert needed(["I cannot."], *TOOLS) == [False]
    assert needed([tool_call("true"), "I cannot."], *TOOLS) == [True]
    assert needed(["I cannot."], *TOOLS, ARTEFACT) == [True]


def test_failures_and_trust_are_shares_of_what_was_graded() -> None:
    def made(verdict: Verdict, *, used: bool = True) -> Rollout:
        return Rollout(Row(0, (1,), "", "", {}), verdict=verdict, used_sandbox=used)

    isolated, shared = (Verdict(Outcome.PASSED, 1.0, trust=t) for t in ("isolated", "shared"))
    infra = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "the daemon is away")
    members = [made(isolated)] * 3 + [made(shared), made(shared, used=False), made(infra)]
    found = batch_metrics(Batch(finished=[Group(0, tuple(members))]), 0)
    assert (found["infra_failed_rate"], found["trust/shared"]) == (0.2, 0.25)


INT, HUP = signal.SIGINT, signal.SIGHUP


@pytest.mark.parametrize(("number", "heard"), [(INT, True), (HUP, True), (HUP, False)])
def test_a_signal_ends_a_run_but_a_closed_terminal_not_with_nohup(number: int, heard: bool) -> None:
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
    rights = [Outcome.PASSED, Outcome.FAILED] * 20
    for verdict, right, lost in zip(verdicts, rights, failed, strict=True):
        assert verdict.outcome is (Outcome.INFRA_ERROR if lost else right)
        assert (verdict.reward is None) is lost
