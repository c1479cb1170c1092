"""Tests in one sandbox and the submission in another behave as if both were in one process."""

import asyncio
import textwrap
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
    judge_folder,
)
from sandboxkit.integrations.rewards._judges import judges
from tests.rewards.conftest import grade_all
from tests.rewards.corpus.across import BEHAVIOURS, HOSTILE, IN_PLACE, SUBMISSION

pytestmark = pytest.mark.timeout(300)
LIMITS = Limits(timeout=20)


def module_test(body: str) -> dict[str, Any]:
    """A test whose body is at the module's level, where a star import may be."""
    return {"tests": textwrap.dedent(body) + "\ndef test_it(): pass\n"}


def test_tests_see_the_same_as_in_one_process(provider: str) -> None:
    submissions = [
        (name, SUBMISSION, {**module_test(body), "in_place": name in IN_PLACE})
        for name, body in BEHAVIOURS.items()
    ]
    verdicts = grade_all(provider, HostCompare(LIMITS), submissions)
    assert {n: v.detail for n, v in verdicts.items() if v.outcome is not Outcome.PASSED} == {}
    assert {verdict.trust for verdict in verdicts.values()} == {"isolated"}


def grade(code: str, task: dict[str, Any], **options: Any) -> Verdict:
    return grade_all("local", HostCompare(LIMITS, **options), [("it", code, task)])["it"]


def test_the_submission_cannot_reach_what_decides() -> None:
    grader = HostCompare(Limits(timeout=4, wall=5, deadline=40))
    submissions = [(name, code, {"tests": tests}) for name, (code, tests) in HOSTILE.items()]
    verdicts = grade_all("local", grader, submissions)
    assert {n: v for n, v in verdicts.items() if (v.reward, v.trust) != (0.0, "isolated")} == {}


def test_a_test_that_changes_its_folder_does_not_fail_the_next() -> None:
    code, tests = HOSTILE["a folder that an earlier test left"]
    right = code.replace("1", "9")
    submissions = [(name, each, {"tests": tests}) for name, each in (("a", code), ("b", right))]

    async def main() -> list[float]:
        async with Session("local") as session:
            grader = HostCompare(LIMITS)
            return [(await grader.grade(session, c, t)).score for _, c, t in submissions]

    assert asyncio.run(main()) == [0.0, 1.0]


def test_a_daemon_thread_of_the_tests_fails_no_correct_submission() -> None:
    tests = (
        "import threading\nfrom solution import f\ndef test():\n"
        "    threading.Thread(target=f, args=(1,), daemon=True).start()\n    assert f(0) == 9"
    )
    code = "import time\ndef f(n):\n    time.sleep(n)\n    return 9"
    assert grade(code, {"tests": tests}).outcome is Outcome.PASSED


def test_an_operator_with_plain_data_returns_objects_without_plain_values() -> None:
    task = {"tests": "from solution import Vector\ndef test(): assert (Vector(1, 2) * 3).y == 6"}
    assert grade(SUBMISSION, task).outcome is Outcome.PASSED
    near = (
        "class Near:\n    def __sub__(self, other): return self\n    def __abs__(self): return 0\n"
    )
    task = {"tests": "from solution import Near\ndef test(): assert abs(Near() - 5) < 1"}
    assert grade(near, task).outcome is Outcome.FAILED
    assert grade(near, {**task, "operators": ["Near"]}).outcome is Outcome.PASSED


def test_partial_scores_count_what_a_judge_runs() -> None:
    code = "def f(x): return x if x < 3 else 0"
    lines = [f"assert f({n}) > {n - 1}" for n in range(1, 5)] + ["assert f(1) == 1"]
    assert grade(code, {"test_list": lines}, partial=True).score == 3 / 5


def test_a_function_of_the_prompt_belongs_to_the_tests() -> None:
    """HumanEval's prompts define helpers; a submission cannot bring its own."""
    prompt = (
        "def shift(text):\n    return text[1:] + text[:1]\n\n"
        "def unshift(text):\n    '''Undo shift.'''\n"
    )
    task = {
        "prompt": prompt,
        "entry_point": "unshift",
        "test": "def check(candidate):\n    assert candidate(shift('abc')) == 'abc'",
    }
    right = prompt + "    return text[-1:] + text[:-1]\n"
    cheat = "def shift(text): return text\ndef unshift(text): return text\n"
    assert grade(right, task).outcome is Outcome.PASSED
    assert grade(cheat, task).outcome is Outcome.FAILED


def test_one_judge_serves_many_submissions_beside_the_limit() -> None:
    async def main() -> tuple[list[Verdict], int]:
        async with Session("local", max_concurrency=1) as session:
            task = {"test_list": ["assert f(2) > 1"]}
            grader = HostCompare(LIMITS)
            verdicts = [
                await grader.grade(session, f"def f(x): return x + {n}", task) for n in range(4)
            ]
            return verdicts, len(judges(session)._kept)

    verdicts, kept = asyncio.run(main())
    assert [verdict.score for verdict in verdicts] == [1.0] * 4
    assert kept == 1


def test_a_lost_judge_is_replaced() -> None:
    async def main() -> Verdict:
        async with Session("local") as session:
            task = {"test_list": ["assert f(2) > 1"]}
            grader = HostCompare(LIMITS)
            await grader.grade(session, "def f(x): return x", task)
            await judges(session)._kept[0].sandbox.stop()
            return await grader.grade(session, "def f(x): return x", task)

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
        asyncio.run(_grade_once(task, HostCompare(LIMITS)))


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
