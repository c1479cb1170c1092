"""Judges, which run tests in a sandbox without the submission: what they refuse, and that no grade survives in them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError, Session
from sandboxkit.integrations.rewards import (
    HostCompare,
    Limits,
    Outcome,
    Verdict,
    grading_session,
    judge_folder,
)
from sandboxkit.integrations.rewards.programs import JudgeProgram, Program
from tests.docker_here import require_docker
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import DATA, read

pytestmark = [pytest.mark.timeout(300), pytest.mark.anyio]
GIVEN = read(DATA / "judge.toml")
LIMITS = Limits(timeout=20)
GRADER = HostCompare(LIMITS)
ABOVE = {"test_list": ["assert f(2) > 1"]}


@pytest.mark.parametrize("where", ["local", "docker"])
async def test_no_grade_survives_in_the_sandbox_of_a_judge(where: str) -> None:
    """A task whose tests evaluate what is returned takes over its judge; sound tasks are graded in the same session.

    The pool has one sandbox for judges and one for submissions, so that each grade meets what the last one left.
    """
    if where == "docker":
        require_docker()
    sound = {
        "tests": "from solution import f\ndef test():\n    for n in range(3): assert f(n) == n + 1"
    }
    async with grading_session(GRADER, where, pool=2) as session:
        for way, task in GIVEN["evaluates"].items():
            code = f"CODE = {GIVEN['takeover']!r}\n{GIVEN['submissions'][way]}"
            taken = await GRADER.grade(session, code, task)
            assert taken.trust == ("shared" if way == "openly" else "isolated")
            wrong = await GRADER.grade(session, "def f(n): return 0", sound)
            right = await GRADER.grade(session, "def f(n): return n + 1", sound)
            assert (wrong.outcome, wrong.score, right.score) == (Outcome.FAILED, 0, 1), way


@pytest.mark.parametrize("where", ["local", "docker"])
async def test_no_grade_survives_in_the_sandbox_of_a_checker(where: str) -> None:
    if where == "docker":
        require_docker()
    checker = JudgeProgram(GIVEN["checker"], language="python")
    task = {"cases": [{"stdin": "1\n", "stdout": "2\n"}], "checker": checker}
    grader = Program("python", limits=LIMITS)

    async def grade(session: Session, code: str) -> Verdict:
        return await grader.grade(session, code, task)

    async with grading_session(grader, where, pool=2) as session:
        taken = await grade(session, f"print({GIVEN['takeover']!r}.replace(chr(10), ' ; '))")
        assert taken.reward == 0
        assert (await grade(session, "print('3')")).reward == 0
        assert (await grade(session, "print('1 + 1')")).reward == 1


async def test_judges_hold_half_of_a_pool_at_most() -> None:
    task = {"tests": "def test_it():\n    assert double(4) == 8\n"}
    async with grading_session(GRADER, "local", max_concurrency=2, tags="count:judges") as session:
        code = "def double(n):\n    return 2 * n\n"
        verdicts = await asyncio.gather(*(GRADER.grade(session, code, task) for _ in range(20)))
        assert all(each.score == 1 for each in verdicts)
        assert len(await session.list("count:judges")) <= 2


def test_a_judge_reads_values_of_megabytes_which_may_be_forged() -> None:
    """The host does not parse a large answer: a forged one can only be what a function may return or raise."""
    task = {"test_list": ["assert len(f(200_000)) == 200_000", "assert sum(f(9)) == 36"]}
    forge = GIVEN["large"]["forge"]
    codes = {repr(text): f"TEXT = {text!r}\n{forge}" for text in GIVEN["large"]["answers"]}
    submissions = {**codes, "honest": "def f(n): return list(range(n))"}
    verdicts = grade_all(
        "local", GRADER, [(name, code, task) for name, code in submissions.items()]
    )
    assert all(each.score == (name == "honest") for name, each in verdicts.items()), verdicts


def test_partial_scores_count_what_a_judge_runs() -> None:
    code = "def f(x): return x if x < 3 else 0"
    lines = [f"assert f({n}) > {n - 1}" for n in range(1, 5)] + ["assert f(1) == 1"]
    grader = HostCompare(LIMITS, partial=True)
    assert grade_all("local", grader, [("it", code, {"test_list": lines})])["it"].score == 3 / 5


@pytest.mark.parametrize(
    ("task", "python"),
    [(ABOVE, "python-of-nowhere"), *((task, None) for task in GIVEN["refused"])],
)
async def test_tests_that_cannot_be_run_are_refused(
    task: dict[str, Any], python: str | None
) -> None:
    grader = HostCompare(Limits(timeout=5, python=python) if python else LIMITS)
    async with Session("local") as session:
        with pytest.raises(ConfigurationError, match=python):
            await grader.grade(session, "def f(x): return x", task)


async def test_tests_that_end_without_asking_are_the_tasks_mistake() -> None:
    task = {"tests": "import os\nfrom solution import f\ndef test():\n    sys = f(os)"}
    ends = {
        "tests": "import sys\nfrom solution import f\ndef test():\n    sys.modules['os']._exit(1)"
    }
    async with Session("local") as session:
        verdict = await GRADER.grade(session, "def f(x): return x", ends)
        assert verdict.reward is None
        assert "the task is at fault" in verdict.detail
        assert (await GRADER.grade(session, "def f(x): return x", task)).trust == "shared"


async def test_a_folder_of_tests_judges_a_workspace(provider: str, tmp_path: Path) -> None:
    (tmp_path / "expected.txt").write_text("8")
    for name, trust in (("reads", "isolated"), ("runs", "shared")):
        (tmp_path / "judge.py").write_text(GIVEN["folder"][name])
        for factor, outcome in ((2, Outcome.PASSED), (3, Outcome.FAILED)):
            async with Session(provider) as session:
                files = {"/workspace/inner.py": b"print(%d * 4)" % factor}
                verdict = await judge_folder(
                    session, session.sandbox(files=files), tmp_path, LIMITS
                )
            assert (verdict.outcome, verdict.trust) == (outcome, trust)


async def test_a_lost_subject_is_masked(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("import subject\ndef test(): subject.run(['true'])")
    async with Session("local") as session, Session("local") as other:
        sandbox = await session.sandbox().start()
        assert sandbox.id is not None
        await (await other.adopt(sandbox.id)).stop()
        with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
            await judge_folder(session, sandbox, tmp_path, LIMITS)
