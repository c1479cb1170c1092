"""Tests in forks of the submission's process: right ones pass, and only cheats of its own kind do."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards import Limits, Outcome, Verdict, _tests
from sandboxkit.integrations.rewards._same_process import grade_in_same_process
from tests.rewards.cheats import SLOW, TRIALS
from tests.rewards.conftest import grade_all
from tests.rewards.corpus.idioms import IDIOMS
from tests.rewards.corpus.shapes import Shape
from tests.rewards.corpus.trying import try_all

pytestmark = pytest.mark.timeout(900)
LIMITS = Limits(timeout=20, wall=40, memory_mb=256)
EVERY = 9
"""Of the cheats of each trial every so manieth is tried."""


@dataclass(frozen=True, slots=True)
class Beside:
    """All tests of a task, beside the submission."""

    limits: Limits

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        verdict = Verdict(Outcome.PASSED, 1.0)
        for tests in _tests.tests_of(task, task.get("test_list", ())):
            verdict = await grade_in_same_process(session, submission, tests, self.limits)
            if verdict.outcome is not Outcome.PASSED:
                break
        return verdict


def grade(code: str, task: dict[str, Any], limits: Limits = LIMITS) -> Verdict:
    return grade_all("local", Beside(limits), [("it", code, task)], in_turn=True)["it"]


def module(body: str) -> dict[str, Any]:
    return {"tests": f"from solution import f\ndef test_it():\n    {body}\n"}


def readable(shape: Shape) -> bool:
    return bool({"test", "tests", "test_list"} & set(shape.task))


def test_every_idiom_passes(provider: str) -> None:
    rows = [(name, idiom.reference, idiom.task) for name, idiom in IDIOMS.items()]
    verdicts = grade_all(provider, Beside(LIMITS), rows, in_turn=True)
    assert {n: v.detail for n, v in verdicts.items() if v.outcome is not Outcome.PASSED} == {}
    assert {verdict.trust for verdict in verdicts.values()} == {"shared"}


def test_a_wrong_submission_fails_in_every_idiom() -> None:
    rows = [(name, idiom.wrong, idiom.task) for name, idiom in IDIOMS.items()]
    verdicts = grade_all("local", Beside(LIMITS), rows, in_turn=True)
    assert {n: v for n, v in verdicts.items() if v.outcome is not Outcome.FAILED} == {}


def test_no_cheat_of_a_sample_is_accepted() -> None:
    tried = []
    for trial in TRIALS:
        shapes = [shape for shape in trial.shapes if readable(shape)]
        names = [name for name in sorted(trial.cheats) if name not in SLOW]
        for number, name in enumerate(names[::EVERY] if shapes else ()):
            tried.append((trial, shapes[number % len(shapes)], name))
    verdicts = try_all("local", Beside, tried, reset=True)
    assert sorted(str(key) for key, each in verdicts.items() if each.score != 0) == []
    assert {key: each.detail for key, each in verdicts.items() if each.reward is None} == {}


def test_every_honest_submission_of_the_trials_is_accepted() -> None:
    tried = [(t, shape, None) for t in TRIALS for shape in t.shapes if readable(shape)]
    verdicts = try_all("local", Beside, tried, reset=True)
    assert {key: each for key, each in verdicts.items() if each.score != 1} == {}


HARD = {
    "exits at once": "import os\nos._exit(0)",
    "exits in the test": "import os\ndef f(): os._exit(0)",
    "raises SystemExit in the test": "def f(): raise SystemExit(0)",
    "closes everything": "import os\nos.closerange(0, 1000)\ndef f(): return 0",
    "kills its parents": "import os\ndef f(): os.kill(os.getppid(), 9); return 0",
    "kills its parents at once": "import os\nos.kill(os.getppid(), 9)\ndef f(): return 0",
    "replaces os.write": "import os\nos.write = lambda *a: 1 << 20\ndef f(): return 0",
    "replaces the builtins": (
        "import builtins\nfor n in ('eval', 'exec', 'compile', 'isinstance', 'repr', 'any', 'all'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\ndef f(): return 0"
    ),
    "writes to every descriptor": (
        "import os\ndef f():\n    for n in range(1024):\n"
        '        try: os.write(n, b\'["test", "", "passed", ""]\\n["ended"]\\n\')\n'
        "        except OSError: pass\n    os._exit(0)"
    ),
    "traces": "import sys\nsys.settrace(lambda *a: None)\ndef f(): return 5",
    "leaves a thread": "import threading\nthreading.Thread(target=input).start() or threading.Thread(target=__import__('time').sleep, args=(99,), daemon=True).start()\ndef f(): return 5",
    "hooks forks": "import os\nos.register_at_fork(after_in_child=lambda: None)\ndef f(): return 5",
    "hooks audits": "import sys\nsys.addaudithook(lambda *a: None)\ndef f(): return 5",
    "reads the frame of the test": (
        "import sys\ndef f(): return sys._getframe(1).f_code.co_consts[-1] and 5"
    ),
    "reads the frame of the test by inspect": "import inspect\ndef f(): return inspect.stack() and 5",
    "reads the heap": "import gc\ndef f(): return gc.get_objects() and 5",
    "changes a constant": (
        "import ctypes\ndef f():\n    ctypes.c_char.from_address(id(0) + 24).value = 5\n    return 0"
    ),
    "equals everything": (
        "class E:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(): return E()"
    ),
    "equals everything in a list": (
        "class E:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(): return [E()]"
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_a_cheat_fails(name: str) -> None:
    verdict = grade(HARD[name], module("assert f() in (5, [5]) and f() in (5, [5])"))
    assert (verdict.reward, verdict.trust) == (0.0, "shared"), verdict


ACCEPTED = {
    "reads the frame of the test from a traceback": (
        "def f():\n    try: raise KeyError\n    except KeyError as error:\n"
        "        caller = error.__traceback__.tb_frame.f_back\n"
        "    return max(n for n in caller.f_code.co_consts if type(n) is int)",
        "assert f() == 5",
    ),
    "its difference from everything is nought": (
        "class E:\n    def __sub__(self, other): return 0\ndef f(): return E()",
        "assert abs(f() - 5) < 1e-6",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_cheat_against_this_way_of_grading_is_labelled_shared(name: str) -> None:
    """What is known to pass. Whoever closes one of them moves it to the others."""
    code, body = ACCEPTED[name]
    verdict = grade(code, module(body))
    assert (verdict.outcome, verdict.trust) == (Outcome.PASSED, "shared")


def test_replaced_attributes_are_restored() -> None:
    code = """
import atexit, builtins, collections, gc, math, os, signal, sys, unittest
builtins.isinstance = lambda *_: True
math.isclose = lambda *_, **__: True
unittest.TestCase.assertEqual = lambda *_: None
collections.Counter.most_common.__code__ = (lambda self, n=None: []).__code__
sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(lambda *a: os._exit(0))}))
gc.callbacks.append(lambda *_: os._exit(0))
signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
sys.excepthook = lambda *_: os._exit(0)
"""
    tests = """
import collections, gc, math, signal, sys, unittest
import solution
def test_it():
    assert not isinstance(1, str)
    assert not math.isclose(1, 2)
    try:
        unittest.TestCase().assertEqual(1, 2)
    except AssertionError:
        pass
    else:
        raise ValueError("assertEqual is not what it was")
    assert collections.Counter("aab").most_common(1) == [("a", 2)]
    assert gc.callbacks == []
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert sys.excepthook is sys.__excepthook__
"""
    verdict = grade(code, {"tests": tests})
    assert verdict.outcome is Outcome.PASSED, verdict


def test_an_exception_of_the_submission_does_not_catch_an_assertion() -> None:
    tests = """
from solution import Insufficient, withdraw
def test_it():
    try:
        withdraw(10, 30)
        assert False
    except Insufficient:
        pass
"""
    for base in ("AssertionError", "Exception", "(AssertionError, KeyError)"):
        code = f"Insufficient = {base}\ndef withdraw(a, b): return a - b"
        assert grade(code, {"tests": tests}).reward == 0.0
    right = "class Insufficient(Exception): pass\ndef withdraw(a, b): raise Insufficient"
    assert grade(right, {"tests": tests}).outcome is Outcome.PASSED


def test_a_star_import_does_not_override_what_the_tests_define() -> None:
    tests = "from math import isclose\nfrom solution import *\ndef test_it(): assert isclose(root(4), 2)"
    cheat = "isclose = lambda *a: True\ndef root(n): return 0"
    assert grade(cheat, {"tests": tests}).reward == 0.0
    right = "def root(n): return n ** 0.5"
    assert grade(right, {"tests": tests}).outcome is Outcome.PASSED


def test_operators_of_listed_classes_apply() -> None:
    code = (
        "class N:\n    def __init__(self, n): self.n = n\n"
        "    def __eq__(self, other): return self.n == other\ndef f(): return N(5)"
    )
    task = module("assert f() == 5")
    assert grade(code, task).reward == 0.0
    assert grade(code, {**task, "operators": ["N"]}).outcome is Outcome.PASSED


def test_a_test_does_not_see_changes_of_another() -> None:
    tests = (
        "from solution import seen\n"
        "def test_one():\n    seen.append(1)\n    assert seen == [1]\n"
        "def test_two():\n    seen.append(2)\n    assert seen == [2]\n"
    )
    assert grade("seen = []", {"tests": tests}).outcome is Outcome.PASSED


def test_the_first_test_that_fails_is_named() -> None:
    tests = "from solution import f\ndef test_one():\n    assert f(1) == 1\ndef test_two():\n    assert f(2) == 3, 'two'\n"
    verdict = grade("def f(n): return n", {"tests": tests})
    assert verdict.outcome is Outcome.FAILED
    assert verdict.detail == "test 2: line 5: AssertionError: two"


def test_the_limits_apply() -> None:
    brief = Limits(timeout=2, wall=4, memory_mb=128)
    task = module("assert f() == 5")
    for code in (
        "while True: pass",
        "def f():\n    while True: pass",
        "import time\ntime.sleep(99)",
    ):
        assert grade(code, task, brief).outcome is Outcome.TIMEOUT
    memory = grade("def f():\n    kept = []\n    while True: kept.append(bytearray(1 << 24))", task)
    assert memory.reward == 0.0


def test_tests_that_do_not_parse_are_a_configuration_error() -> None:
    async def main() -> None:
        async with Session("local") as session:
            await Beside(LIMITS).grade(session, "", {"tests": "def test_it("})

    with pytest.raises(ConfigurationError, match="does not parse"):
        asyncio.run(main())
