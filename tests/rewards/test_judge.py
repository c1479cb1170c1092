"""Judges, which run tests in one sandbox of a submission in another. The corpus `across` has what they see."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import (
    ConfigurationError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards import (
    Grader,
    HostCompare,
    Limits,
    Outcome,
    Verdict,
    grading_session,
    judge_folder,
)
from sandboxkit.integrations.rewards._judges import judges
from tests.rewards.conftest import grade_all

pytestmark = pytest.mark.timeout(300)
LIMITS = Limits(timeout=20)
GRADER = HostCompare(LIMITS)


def test_a_test_that_changes_its_folder_does_not_fail_the_next() -> None:
    tests = "import os\nfrom solution import f\ndef test():\n    os.mkdir('left'); assert f() == 9"

    async def main() -> list[float]:
        async with Session("local") as session:
            codes = (f"def f(): return {number}" for number in (1, 9))
            return [(await GRADER.grade(session, code, {"tests": tests})).score for code in codes]

    assert asyncio.run(main()) == [0.0, 1.0]


def test_partial_scores_count_what_a_judge_runs() -> None:
    code = "def f(x): return x if x < 3 else 0"
    lines = [f"assert f({n}) > {n - 1}" for n in range(1, 5)] + ["assert f(1) == 1"]
    grader = HostCompare(LIMITS, partial=True)
    verdicts = grade_all("local", grader, [("it", code, {"test_list": lines})])
    assert verdicts["it"].score == 3 / 5


def test_one_judge_serves_many_submissions_beside_the_limit() -> None:
    async def main() -> tuple[list[Verdict], int]:
        async with Session("local", max_concurrency=1) as session:
            task = {"test_list": ["assert f(2) > 1"]}
            verdicts = [
                await GRADER.grade(session, f"def f(x): return x + {n}", task) for n in range(4)
            ]
            return verdicts, len(judges(session)._kept)

    verdicts, kept = asyncio.run(main())
    assert [verdict.score for verdict in verdicts] == [1.0] * 4
    assert kept == 1


@pytest.mark.anyio
async def test_submissions_that_wait_for_room_need_no_judge() -> None:
    task = {"tests": "def test_it():\n    assert double(4) == 8\n", "names": ["double"]}
    async with grading_session(GRADER, "local", max_concurrency=2, tags="count:judges") as session:
        code = "def double(n):\n    return 2 * n\n"
        verdicts = await asyncio.gather(*(GRADER.grade(session, code, task) for _ in range(40)))
        assert all(each.score == 1 for each in verdicts)
        assert len(await session.list("count:judges")) <= 2 + 1


def test_a_lost_judge_is_replaced() -> None:
    async def main() -> Verdict:
        async with Session("local") as session:
            task = {"test_list": ["assert f(2) > 1"]}
            await GRADER.grade(session, "def f(x): return x", task)
            await judges(session)._kept[0].sandbox.stop()
            return await GRADER.grade(session, "def f(x): return x", task)

    assert asyncio.run(main()).outcome is Outcome.PASSED


def test_a_judge_without_python_is_a_configuration_error() -> None:
    grader = HostCompare(Limits(timeout=5, python="python-of-nowhere"))
    with pytest.raises(ConfigurationError, match="python-of-nowhere"):
        asyncio.run(_grade_once({"test_list": ["assert f(2) > 1"]}, grader))


@pytest.mark.parametrize(
    "task",
    [
        {"test": "def check(candidate): pass"},
        {"test": "def check(", "entry_point": "f"},
        {"tests": "x = 1"},
        {"tests": "def test_it(tmp_path): pass"},
        {"tests": "class TestIt: pass"},
        {"test_list": ["assert ("]},
        {"test_list": ["assert f(1) == 1"], "test_setup_code": "("},
    ],
)
def test_tests_that_cannot_be_run_are_refused(task: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        asyncio.run(_grade_once(task, GRADER))


async def _grade_once(task: dict[str, Any], grader: Grader) -> Verdict:
    async with Session("local") as session:
        return await grader.grade(session, "def f(x): return x", task)


FOLDER_TESTS = """
import json
import subject

def test_programs():
    assert subject.run(["sh", "-c", "cat; exit 3"], stdin="hi") == (3, "hi")
    try:
        subject.run(["sh", "-c", "while :; do :; done"], timeout=0.5)
    except TimeoutError:
        pass
    else:
        raise AssertionError

def test_files():
    subject.write_file("/workspace/a/b.json", json.dumps([1]))
    assert json.loads(subject.read_file("/workspace/a/b.json")) == [1]
    subject.remove("/workspace/a")
    subject.remove("/workspace/a")
    for path in ("/workspace/a/b.json", "/no/such"):
        try:
            subject.read_file(path)
        except FileNotFoundError:
            continue
        raise AssertionError

def test_modules():
    assert subject.load("package.inner").double(4) == int(open("expected.txt").read())
"""


def test_a_folder_of_tests_judges_a_workspace(provider: str, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(FOLDER_TESTS)
    (tmp_path / "expected.txt").write_text("8")

    async def main(result: int) -> Verdict:
        async with Session(provider) as session:
            files = {"/workspace/package/inner.py": b"def double(x): return x * %d" % result}
            sandbox = session.sandbox(files=files)
            return await judge_folder(session, sandbox, tmp_path, LIMITS)

    assert asyncio.run(main(2)).outcome is Outcome.PASSED
    wrong = asyncio.run(main(3))
    assert (wrong.outcome, wrong.trust) == (Outcome.FAILED, "isolated")


def test_a_lost_subject_is_masked(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("import subject\ndef test(): subject.run(['true'])")

    async def main() -> None:
        async with Session("local") as session:
            sandbox = await session.sandbox().start()
            async with Session("local") as other:
                assert sandbox.id is not None
                await (await other.adopt(sandbox.id)).stop()
            await judge_folder(session, sandbox, tmp_path, LIMITS)

    with pytest.raises((SandboxNotFoundError, SandboxTerminatedError)):
        asyncio.run(main())
