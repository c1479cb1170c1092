"""`Program` tells apart how programs end, and nothing of one case reaches the next."""

import asyncio
import time
from typing import Any

import pytest

from sandboxkit.integrations.rewards import Limits, Outcome, grading_session
from sandboxkit.integrations.rewards.programs import Program
from sandboxkit.providers.local import _cgroup
from tests.components import lack, without_control_group
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA, grade, grade_all, options_for

DOUBLE = {"cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in (1, 7, 20)]}
GIVEN = read(DATA / "endings.toml")
PROGRAMS = GIVEN["outcomes"]
"""Programs, how each ends, and a word of the verdict's detail."""


def test_outcomes_are_told_apart(provider: str) -> None:
    grader = Program("python", limits=Limits(timeout=1, memory_mb=256, output_limit=1 << 20))
    todo = [(name, each["code"], DOUBLE) for name, each in PROGRAMS.items()]
    verdicts = grade_all(provider, grader, todo)
    found = {name: verdict.outcome for name, verdict in verdicts.items()}
    assert found == {name: each["outcome"] for name, each in PROGRAMS.items()}, verdicts
    assert {verdict.trust for verdict in verdicts.values()} == {"isolated"}
    for name, verdict in verdicts.items():
        assert verdict.reward == (name == "right")
        assert PROGRAMS[name].get("detail", "") in verdict.detail


def test_a_compile_error_has_the_compilers_words(provider: str) -> None:
    verdict = grade(provider, Program("c"), "int main( {", DOUBLE, needs="c")
    assert verdict.outcome is Outcome.COMPILE_ERROR
    assert "main.c:1" in verdict.detail
    assert len(verdict.detail) < 1000


def test_parts_say_what_each_case_used(provider: str) -> None:
    code = "n = int(input())\nfor _ in range(10**6): pass\nprint(2 * n)"
    verdict = grade(provider, Program("python"), code, DOUBLE)
    assert [part.name for part in verdict.parts] == ["1", "2", "3"]
    for part in verdict.parts:
        assert part.outcome is Outcome.PASSED
        assert 0 < (part.processor_seconds or 0) < 5
        assert (part.wall_seconds or 0) > 0
        assert (part.output_bytes or 0) > 1


def test_the_first_wrong_answer_ends_the_grading(provider: str) -> None:
    code = "n = int(input())\nprint(2 * n if n == 1 else 0)"
    verdict = grade(provider, Program("python"), code, DOUBLE, in_turn=False)
    assert [part.outcome for part in verdict.parts] == [Outcome.PASSED, Outcome.FAILED]
    assert verdict.detail.startswith("case 2: line 1 is wrong: 0")
    assert verdict.score == 0


def test_partial_is_the_weighted_share(provider: str) -> None:
    cases = [{**case, "weight": n} for n, case in enumerate(DOUBLE["cases"], 1)]
    code = "n = int(input())\nprint(2 * n if n != 7 else 0)"
    verdict = grade(provider, Program("python", partial=True), code, {"cases": cases})
    assert verdict.score == pytest.approx(4 / 6)
    assert len(verdict.parts) == 3


ENDS = {number: code for number, code, _ in GIVEN["by_input"]}
"""What a program does with each input, whose double it should print."""
ENDING = GIVEN["program"].replace("@ENDS@", repr(ENDS))


def test_cases_that_share_a_sandbox_have_the_outcomes_of_cases_that_do_not(provider: str) -> None:
    if provider == "local" and not _cgroup.available():
        lack(without_control_group(""))  # nothing else counts what the children of case 7 use
    cases = [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n", "weight": n} for n in ENDS]
    grader = Program("python", limits=Limits(timeout=1), partial=True)
    single, shared = (
        grade(provider, grader, ENDING, {"cases": cases}, in_turn=in_turn)
        for in_turn in (False, True)
    )
    expected = [outcome for _, _, outcome in GIVEN["by_input"]]
    assert [part.outcome for part in single.parts] == expected, single
    assert [part.outcome for part in shared.parts] == expected, shared
    assert [part.name for part in shared.parts] == [str(n) for n in range(1, 11)]
    assert shared.score == single.score == pytest.approx((3 + 8 + 10 + 12) / 75)


def test_arguments_and_files(provider: str) -> None:
    case: dict[str, Any] = {
        "args": ["a b", "$HOME", "'"],
        "files": {"in.txt": "words\n"},
        "outputs": {"out.txt": "WORDS\n"},
        "stdout": "a b $HOME '\n",
    }
    for outputs, outcome, detail in (
        ({}, Outcome.PASSED, ""),
        ({"out.txt": "OTHERS\n"}, Outcome.FAILED, "line 1 is wrong"),
        ({"none.txt": "WORDS\n"}, Outcome.FAILED, "none.txt"),
    ):
        task = {"cases": [{**case, "outputs": outputs or case["outputs"]}]}
        verdict = grade(provider, Program("python"), GIVEN["files"], task)
        assert verdict.outcome is outcome
        assert detail in verdict.detail


def test_nothing_of_one_case_reaches_the_next(provider: str) -> None:
    cases = {"cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in range(6)]}
    verdict = grade(provider, Program("python"), GIVEN["leaver"], cases)
    assert verdict.outcome is Outcome.PASSED, verdict


def test_a_time_limit_is_multiplied_for_slow_languages(provider: str) -> None:
    code = "import time\nn = int(input())\nwhile time.process_time() < 0.6: pass\nprint(2 * n)"
    task = {**DOUBLE, "time_limit": 0.2}
    assert grade(provider, Program("python"), code, task).reward == 1
    late = code.replace("0.6", "1.6")
    assert grade(provider, Program("python"), late, task).outcome is Outcome.TIMEOUT


def test_a_memory_limit_is_the_tasks_own(provider: str) -> None:
    code = "n = int(input())\nx = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint(2 * n)"
    low, high = ({**DOUBLE, "memory_limit_mb": size} for size in (64, 512))
    assert grade(provider, Program("python"), code, low).outcome is Outcome.OOM
    assert grade(provider, Program("python"), code, high).reward == 1


def test_appended_tests_are_shared(provider: str) -> None:
    task = {"tests": "assert double(2) == 4"}
    grader = Program("python")
    verdict = grade(provider, grader, "def double(n): return 2 * n", task)
    assert (verdict.reward, verdict.trust) == (1, "shared")
    verdict = grade(provider, grader, "def double(n): return n", task)
    assert (verdict.reward, verdict.trust) == (0, "shared")


def test_a_cancelled_grading_ends_its_cases() -> None:
    options = options_for("local", "python")
    waits = {"cases": [{"stdin": f"{n}\n", "stdout": ""} for n in range(4)]}

    async def main() -> None:
        grader = Program("python", limits=Limits(timeout=60))
        async with grading_session(grader, "local", pool=2, **options) as session:
            code = "import time; time.sleep(60)"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await grader.grade(session, code, waits)
            begun = time.monotonic()
            verdict = await grader.grade(session, "print(2 * int(input()))", DOUBLE)
            assert verdict.outcome is Outcome.PASSED
            assert time.monotonic() - begun < 30

    asyncio.run(main())
