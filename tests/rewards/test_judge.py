"""Judges, which run tests in one sandbox of a submission in another. The corpus `across` has what they see."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError, Session
from sandboxkit.integrations.rewards import (
    HostCompare,
    Limits,
    Outcome,
    grading_session,
    judge_folder,
)
from sandboxkit.integrations.rewards._judges import judges
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, read

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]
GIVEN = read(DATA / "judge.toml")
LIMITS = Limits(timeout=20)
GRADER = HostCompare(LIMITS)
ABOVE = {"test_list": ["assert f(2) > 1"]}


async def test_a_test_that_changes_its_folder_does_not_fail_the_next() -> None:
    tests = "import os\nfrom solution import f\ndef test():\n    os.mkdir('left'); assert f() == 9"
    async with Session("local") as session:
        for number in (1, 9):
            verdict = await GRADER.grade(session, f"def f(): return {number}", {"tests": tests})
            assert verdict.score == (number == 9)


def test_partial_scores_count_what_a_judge_runs() -> None:
    code = "def f(x): return x if x < 3 else 0"
    lines = [f"assert f({n}) > {n - 1}" for n in range(1, 5)] + ["assert f(1) == 1"]
    grader = HostCompare(LIMITS, partial=True)
    assert grade_all("local", grader, [("it", code, {"test_list": lines})])["it"].score == 3 / 5


async def test_one_judge_serves_many_submissions_and_is_replaced_when_it_is_lost() -> None:
    async with Session("local", max_concurrency=1) as session:
        for n in range(4):
            assert (await GRADER.grade(session, f"def f(x): return x + {n}", ABOVE)).score == 1
            if n == 2:
                (kept,) = judges(session)._kept
                await kept.sandbox.stop()


async def test_submissions_that_wait_for_room_need_no_judge() -> None:
    task = {"tests": "def test_it():\n    assert double(4) == 8\n", "names": ["double"]}
    async with grading_session(GRADER, "local", max_concurrency=2, tags="count:judges") as session:
        code = "def double(n):\n    return 2 * n\n"
        verdicts = await asyncio.gather(*(GRADER.grade(session, code, task) for _ in range(40)))
        assert all(each.score == 1 for each in verdicts)
        assert len(await session.list("count:judges")) <= 2 + 1


@pytest.mark.parametrize(
    ("task", "python", "words"),
    [
        (ABOVE, "python-of-nowhere", "python-of-nowhere"),
        *((task, None, None) for task in GIVEN["refused"]),
        *((task, None, f"'{name}'.*names") for task, name in GIVEN["undefined"]),
    ],
)
async def test_tests_that_cannot_be_run_are_refused(
    task: dict[str, Any], python: str | None, words: str | None
) -> None:
    grader = HostCompare(Limits(timeout=5, python=python) if python else LIMITS)
    async with Session("local") as session:
        with pytest.raises(ConfigurationError, match=words):
            await grader.grade(session, "def f(x): return x", task)


async def test_a_folder_of_tests_judges_a_workspace(provider: str, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(GIVEN["folder"])
    (tmp_path / "expected.txt").write_text("8")
    for factor, outcome in ((2, Outcome.PASSED), (3, Outcome.FAILED)):
        async with Session(provider) as session:
            files = {"/workspace/package/inner.py": b"def double(x): return x * %d" % factor}
            verdict = await judge_folder(session, session.sandbox(files=files), tmp_path, LIMITS)
        assert (verdict.outcome, verdict.trust) == (outcome, "isolated")


async def test_a_lost_subject_is_masked(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("import subject\ndef test(): subject.run(['true'])")
    async with Session("local") as session, Session("local") as other:
        sandbox = await session.sandbox().start()
        assert sandbox.id is not None
        await (await other.adopt(sandbox.id)).stop()
        with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
            await judge_folder(session, sandbox, tmp_path, LIMITS)
