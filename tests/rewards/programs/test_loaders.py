"""Rows and packages of the public layouts become tasks that `Program` grades."""

import base64
import dataclasses
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import HostCompare, programs
from sandboxkit.integrations.rewards.programs import (
    Answer,
    JudgeProgram,
    Program,
    load_code_contests,
    load_icpc,
    load_live_code_bench,
    load_polygon,
)
from sandboxkit.integrations.rewards.programs._problem import problem_of
from tests.rewards import conftest
from tests.rewards.corpus import read
from tests.rewards.programs.conftest import DATA, grade_all
from tests.rewards.programs.golden import GOLDEN

GIVEN = read(DATA / "loaders.toml")
DOUBLE = "print(2 * int(input()))"
PAIRS = [("1\n", "2\n"), ("21\n", "42\n")]
TESTS = {"input": [a for a, _ in PAIRS], "output": [b for _, b in PAIRS]}
LISTED = [{"input": a, "output": b, "testtype": "stdin"} for a, b in PAIRS]


def _compressed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


def _polygon(root: Path, problem: str = GIVEN["polygon"]) -> None:
    for number, (stdin, stdout) in enumerate(PAIRS, 1):
        (root / "tests").mkdir(exist_ok=True)
        (root / f"tests/{number:02d}").write_text(stdin)
        (root / f"tests/{number:02d}.a").write_text(stdout)
    (root / "files").mkdir()
    (root / "files/check.py").write_text(GIVEN["check"])
    (root / "problem.xml").write_text(problem)


def _icpc(root: Path, settings: str = GIVEN["icpc"]) -> None:
    for folder, (stdin, stdout) in zip(("sample", "secret/group"), PAIRS, strict=True):
        (root / "data" / folder).mkdir(parents=True)
        (root / "data" / folder / "1.in").write_text(stdin)
        (root / "data" / folder / "1.ans").write_text(stdout)
    (root / "problem.yaml").write_text(settings)


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Any]:
    for name, write in (("polygon", _polygon), ("icpc", _icpc)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    return {
        "live_code_bench": load_live_code_bench(
            {
                "public_test_cases": json.dumps(LISTED[:1]),
                "private_test_cases": _compressed(LISTED[1:]),
            }
        ),
        **{name: getattr(programs, load)(row) for name, (load, row) in GIVEN["rows"].items()},
        "polygon": load_polygon(tmp_path / "polygon"),
        "icpc": load_icpc(tmp_path / "icpc"),
    }


def test_every_layout_is_graded(tasks: dict[str, Any], provider: str) -> None:
    grader = Program("python")
    right = grade_all(provider, grader, [(n, DOUBLE, t) for n, t in tasks.items()])
    assert {name: verdict.reward for name, verdict in right.items()} == dict.fromkeys(tasks, 1.0)
    assert {len(verdict.parts) for verdict in right.values()} == {2}
    wrong = grade_all(provider, grader, [(n, "print(2)", t) for n, t in tasks.items()])
    assert {name: verdict.reward for name, verdict in wrong.items()} == dict.fromkeys(tasks, 0.0)


def test_limits_are_read(tasks: dict[str, Any]) -> None:
    assert {name: (t.get("time_limit"), t.get("memory_limit_mb")) for name, t in tasks.items()} == {
        "live_code_bench": (None, None),
        "code_contests": (1.5, 256),
        "code_contests_plus": (2, None),
        "taco": (2.0, 256),
        "codeforces": (1.0, 64),
        "apps": (None, None),
        "polygon": (1.5, 256),
        "icpc": (2.0, 512),
    }


def test_a_checker_of_code_contests_gets_your_testlib() -> None:
    task = load_code_contests({"public_tests": TESTS, "checker": '#include "testlib.h"\n'})
    assert isinstance(task["checker"], JudgeProgram)
    own = dataclasses.replace(task["checker"], files={"testlib.h": "// yours"})
    Program("python").validate({**task, "checker": own})


@pytest.mark.parametrize(("load", "row", "words"), GIVEN["wrong"])
def test_a_row_of_another_shape_is_named(load: str, row: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        getattr(programs, load)(row)


def test_a_package_without_its_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"problem\.xml cannot be read"):
        load_polygon(tmp_path)
    with pytest.raises(ConfigurationError, match="no cases below"):
        load_icpc(tmp_path)
    _polygon(tmp_path)
    (tmp_path / "tests/02.a").unlink()
    with pytest.raises(ConfigurationError, match=r"02\.a cannot be read"):
        load_polygon(tmp_path)


@pytest.mark.parametrize(("name", "text", "words"), GIVEN["beside"])
def test_a_file_beside_the_cases_that_asks_for_more_is_refused_by_name(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    _icpc(tmp_path, "validation: custom\n")
    for each, content in (("output_validators/v/a.py", GIVEN["validator"]), (name, text)):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        load_icpc(tmp_path)


@pytest.mark.parametrize(
    ("settings", "place", "codes"),
    [
        (
            "validation: custom\nvalidator_flags: distance 1\n",
            "output_validators/v/validate.py",
            {"print(2 * int(input()) + 1)": 1, "print(9)": 0, "print('crash')": 0, "print('x')": 0},
        ),
        ("type: interactive\n", "output_validator/talk.py", {DOUBLE: 1, "print(input())": 0}),
        (
            "validation: custom interactive\n",
            "output_validators/talk.py",
            {DOUBLE: 1, "print(input())": 0},
        ),
    ],
)
def test_an_output_validator_decides(
    tmp_path: Path, provider: str, settings: str, place: str, codes: dict[str, int]
) -> None:
    _icpc(tmp_path, settings)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(GIVEN["talker" if "talk" in place else "validator"])
    task = load_icpc(tmp_path)
    found = grade_all(provider, Program("python"), [(code, code, task) for code in codes])
    assert {code: verdict.reward for code, verdict in found.items()} == codes, found


@pytest.mark.parametrize(("kind", "old", "new", "words"), GIVEN["packages"])
def test_a_package_that_asks_for_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, kind: str, old: str, new: str, words: str
) -> None:
    write, load = {"polygon": (_polygon, load_polygon), "icpc": (_icpc, load_icpc)}[kind]
    assert old in GIVEN[kind]
    write(tmp_path, GIVEN[kind].replace(old, new))
    with pytest.raises(ConfigurationError, match=words):
        load(tmp_path)


def test_a_program_reads_and_writes_the_files_that_a_problem_names(
    tmp_path: Path, provider: str
) -> None:
    names = 'input-file="in.txt" output-file="out.txt"'
    _polygon(tmp_path, GIVEN["polygon"].replace("<judging>", f"<judging {names}>"))
    row = {"public_tests": TESTS, "input_file": "in.txt", "output_file": "out.txt"}
    tasks = [load_polygon(tmp_path), load_code_contests(row)]
    right = "open('out.txt', 'w').write(str(2 * int(open('in.txt').read())))"
    for code, reward in ((right, 1), (DOUBLE, 0)):
        found = grade_all(
            provider, Program("python"), [(str(n), code, t) for n, t in enumerate(tasks)]
        )
        assert [verdict.reward for verdict in found.values()] == [reward, reward]


def test_domjudge_s_time_limit_is_read(tmp_path: Path) -> None:
    _icpc(tmp_path, "name: Double\n")
    (tmp_path / "domjudge-problem.ini").write_text("name = 'x'\ntimelimit = '3'\n")
    assert load_icpc(tmp_path)["time_limit"] == 3
    (tmp_path / ".timelimit").write_text("4\n")
    assert load_icpc(tmp_path)["time_limit"] == 4


@pytest.mark.parametrize(("flags", "output", "right"), GIVEN["flags"])
def test_flags_of_icpcs_validator(tmp_path: Path, flags: str, output: str, right: bool) -> None:
    _icpc(tmp_path)
    (tmp_path / "problem.yaml").write_text(f"validator_flags: {flags}\n")
    checker = problem_of(load_icpc(tmp_path), "c").checker
    assert not isinstance(checker, JudgeProgram)
    assert (checker.mark(Answer(b"", output.encode(), b"2\n")).score == 1) is right


CHECK = """
import sys
given, correct, output = (open(name).read().split() for name in sys.argv[1:])
print(float(sum(map(int, output)) == int(given[0])) if correct else "no answer")
"""


@pytest.mark.parametrize("mode", ["stdio", "file"])
def test_a_checker_of_codeforces_decides(provider: str, mode: str) -> None:
    row = {"official_tests": [{"input": "9\n", "output": "4 5\n"}], "input_mode": mode}
    task = programs.load_codeforces({**row, "generated_checker": CHECK})
    files = "import sys\nsys.stdin, sys.stdout = open('input.txt'), open('output.txt', 'w')\n"
    codes = {"print(1, int(input()) - 1)": 1, "print(1, input())": 0, "print('x')": 0}
    todo = [(code, files * (mode == "file") + code, task) for code in codes]
    found = grade_all(provider, Program("python"), todo)
    assert {code: verdict.reward for code, verdict in found.items()} == codes, found


def test_a_checker_that_prints_no_score_is_the_task_s_mistake() -> None:
    row = {"examples": [{"input": "9\n", "output": "4 5\n"}], "generated_checker": "print(2)"}
    task = programs.load_codeforces(row)
    (verdict,) = grade_all("local", Program("python"), [("it", "print(1)", task)]).values()
    assert (verdict.reward, "the task is at fault" in verdict.detail) == (None, True)


def _calls(name: str, expected: str) -> dict[str, Any]:
    if name == "apps_calls":
        both = {"fn_name": "f", "inputs": [[0]], "outputs": [json.loads(expected)]}
        return programs.load_apps({"input_output": both})
    case = {"input": "0", "output": expected, "testtype": "functional"}
    return load_live_code_bench({"public_test_cases": [case], "metadata": '{"func_name": "f"}'})


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith("_calls")])
def test_a_row_with_a_function_is_graded_as_its_published_grader_does(name: str) -> None:
    todo = {
        f"{result} for {expected}": (result, expected, accepted)
        for result, expected, accepted in GOLDEN[name]["rows"]
    }
    found = conftest.grade_all(
        "local",
        HostCompare(),
        [
            (key, f"def f(x):\n    return {result}\n", _calls(name, expected))
            for key, (result, expected, _) in todo.items()
        ],
        in_turn=True,
    )
    wanted = {key: accepted for key, (*_, accepted) in todo.items()}
    assert {key: verdict.reward for key, verdict in found.items()} == wanted, found


IMPORTS = [
    "print(gcd(12, 2) * defaultdict(int)[0] + 2)",
    "from __future__ import annotations\nx: Missing = Counter('ab')\nprint(len(x))",
    "\ufeff# -*- coding: utf-8 -*-\nfrom __future__ import (\n  annotations,\n)\nprint(sum(accumulate([1, 0, 0]))-1)",
    "'A docstring.'\nnp = 2\nprint(np)",
    "def depth(n):\n    return n and 1 + depth(n - 1)\nprint(depth(900) - 898)",
]
FUNCTIONS = [
    "class Solution:\n    def f(self, x: List[int]) -> int:\n        return gcd(4, 2)",
    "from __future__ import annotations\ndef f(x: Missing):\n    return sum(Counter('ab').values())",
    "def f(x):\n    return 2 if sys.getrecursionlimit() > 900 else 0",
]


def test_a_data_set_s_imports_come_before_a_submission(provider: str) -> None:
    case = {"input": "", "output": "2\n"}
    both = {"inputs": [""], "outputs": ["2\n"]}
    tasks = [
        load_live_code_bench({"public_test_cases": [case]}),
        programs.load_apps({"input_output": both}),
    ]
    todo = [(f"{n} {code}", code, task) for n, task in enumerate(tasks) for code in IMPORTS]
    found = grade_all(provider, Program("python"), todo)
    calls = [_calls("live_code_bench_calls", "2"), _calls("apps_calls", "[2]")]
    todo = [(f"{n} {code}", code, task) for n, task in enumerate(calls) for code in FUNCTIONS]
    found |= conftest.grade_all("local", HostCompare(), todo, in_turn=True)
    assert {name: verdict.reward for name, verdict in found.items()} == dict.fromkeys(found, 1)
    assert len(found) == 2 * len(IMPORTS) + 2 * len(FUNCTIONS)
