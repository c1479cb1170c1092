"""SWE tasks in the GRPO program: their rows, their sandboxes, their grades; and room for all."""

import asyncio
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toys import repair

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.data import Row, read_rows
from sandboxkit.integrations.grpo.rollout import Group, Rollout, RolloutRunner
from sandboxkit.integrations.grpo.trainer import train
from sandboxkit.integrations.rewards import Outcome
from sandboxkit.integrations.swe import Task, bundled_tasks
from tests.grpo import tiny
from tests.grpo.test_program import metrics, no_sandboxes
from tests.grpo.test_rollout import END, Script, refusing, tool_call
from tests.strangers.tasks import write

TASKS = bundled_tasks()
FIX = TASKS["fix_intervals"]
SUBMIT = '<tool_call>{"name": "submit"}</tool_call>'
LONG = ["rollout.max_turns=4", "rollout.max_completion_tokens=6000", "engine.max_model_tokens=9000",
        "optimizer.max_tokens_per_row=9000"]  # fmt: skip


@pytest.fixture
def session() -> Iterator[Session]:
    tag = f"test:swe-{secrets.token_hex(4)}"
    with Session("local", max_concurrency=2, tags=(tag,)) as session:
        yield session
        assert not session.list(tags=(tag,)).result(30), "each rollout stops its own"


def solution(kind: str) -> str:
    return tool_call((FIX.tests.parent / "solution" / f"{kind}.sh").read_text())


def run(
    session: Session, texts: list[str], *settings: str, count: int = 1, task: Task = FIX
) -> list[Rollout]:
    tokenizer = tiny.chat_tokenizer()
    config = read(None, ["model.name=m", "data.tasks=bundled", *LONG, *settings])
    row = Row(0, (5, 6), "ask", "", {"task_id": task.id})
    engine = Script(tokenizer, texts)
    subject = RolloutRunner(config, tokenizer, {END}, engine, session, {task.id: task})

    async def all_of_them() -> list[Rollout]:
        return list(await asyncio.gather(*[subject.one(row, str(n)) for n in range(count)]))

    return Operation(all_of_them()).result(120)


@pytest.mark.parametrize(
    ("texts", "reward", "calls"),
    [
        ([solution("solve"), SUBMIT], 1.0, 2),
        ([solution("solve"), "It is done."], 1.0, 1),
        ([solution("cheat"), SUBMIT], 0.0, 2),
        (["I give up."], 0.0, 0),
    ],
)
def test_a_task_is_graded_by_its_tests(
    session: Session, texts: list[str], reward: float, calls: int
) -> None:
    (made,) = run(session, texts)
    assert (made.verdict.reward, made.tool_calls) == (reward, calls)
    assert {"sampling", "queue", "start", "grading"} <= made.seconds.keys()


def test_a_task_that_cannot_start_masks_its_rollout_and_its_group_is_kept() -> None:
    with Session(refusing()) as session:
        (failed,) = run(session, [tool_call("true"), "Well."])
    assert failed.verdict.reward is None
    assert "no capacity" in failed.verdict.detail
    assert failed.version == 1, "its first turn was written meanwhile"
    assert Group(0, (failed, Rollout(failed.row, version=0))).version == 0
    assert Group(0, (Rollout(failed.row),)).version is None


def test_waiting_for_room_counts_towards_no_deadline(session: Session) -> None:
    settings = ["rollout.max_turns=2", "grading.max_concurrency=1", "rollout.deadline=6"]
    made = run(session, [tool_call("sleep 1")], *settings, count=5)
    assert [each.verdict.outcome for each in made] == [Outcome.FAILED] * 5
    assert max(each.seconds["queue"] for each in made) > 4, "they did wait"


def test_hung_tests_are_scored(session: Session) -> None:
    hanging = replace(FIX, test_timeout=5.0)
    forever = tool_call("echo 'while True: pass' > intervals/core.py")
    (made,) = run(session, [forever, SUBMIT], "rollout.deadline=4", task=hanging)
    assert (made.verdict.outcome, made.verdict.reward) == (Outcome.TIMEOUT, 0.0)


def test_every_task_is_a_row_or_those_that_a_file_names(tmp_path: Path) -> None:
    config = read(None, ["model.name=m", "data.tasks=bundled", *LONG])
    tokenizer = tiny.chat_tokenizer()
    short = replace(config, engine=replace(config.engine, max_model_tokens=6010))
    with pytest.raises(ConfigurationError, match=r"task 'cli_from_spec': the prompt has"):
        read_rows("", tokenizer, short, TASKS)
    rows = read_rows("", tokenizer, config, TASKS)
    assert [row.task["task_id"] for row in rows] == list(TASKS)
    assert TASKS["parse_logs"].instruction.strip() in rows[list(TASKS).index("parse_logs")].text
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task_id": "parse_logs"}\n{"task_id": "nope"}\n')
    with pytest.raises(ConfigurationError, match=r"line 2: task_id='nope' is none of data.tasks"):
        read_rows(str(path), tokenizer, config, TASKS)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_the_program_trains_on_tasks(tmp_path: Path) -> None:
    repair.write(tmp_path, steps=80)
    for number, row in enumerate(map(json.loads, (tmp_path / "train.jsonl").open())):
        check = row["files"]["/workspace/check.py"]
        cases = [(case["args"][0], case["expected"]) for case in row["cases"]]
        test = f"import sys; sys.path.insert(0, '.'); import s; assert all(s.f(x) == y for x, y in {cases})"
        script = f'exec python3 -c "{test}"\n'
        files = {"environment/seeds/check.py": check, "tests/test.sh": script}
        write(tmp_path / "tasks" / f"repair-{number:02}", **files)
    run = tmp_path / f"swe-{os.getpid()}"
    more = [
        *("data.train=", f"data.tasks={tmp_path}/tasks", "run.steps=2", "rollout.max_turns=4"),
        *("rollout.max_completion_tokens=40", "rollout.group_size=4"),
        *("rollout.prompts_per_step=2", "buffer.drop_equal=false"),
    ]
    assert train(read(None, tiny.settings(tmp_path, run, *more))) == 0
    steps = metrics(run)
    assert [(row["infra_failed_rate"], row["rollouts"]) for row in steps] == [(0.0, 8)] * 2
    assert 0 < sum(row["reward"] for row in steps) / 2 < 1
    assert no_sandboxes(run)
