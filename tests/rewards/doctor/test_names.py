"""What the tests of a task take from the submission, and the cheats that are made of it."""

import ast

from sandboxkit.integrations.rewards.doctor._cheats import cheats
from sandboxkit.integrations.rewards.doctor._names import names_of
from sandboxkit.integrations.rewards.doctor._reference import reference_of
from tests.data_here import beside

GIVEN = beside(__file__)
BANK, TESTS = GIVEN["bank"], GIVEN["tests"]


def test_names_are_distinguished_from_helpers_classes_and_exceptions() -> None:
    names = names_of({"tests": TESTS}, BANK)
    assert (names.functions, names.classes) == (("opened",), ("Account",))
    assert names.exceptions == ("Insufficient",)
    assert {"isclose", "oracle", "sorted", "all"} <= set(names.helpers)
    assert names.answer == "0"


def test_lines_and_cases_have_names_and_a_first_answer() -> None:
    names = names_of({"test_list": ["assert set(f(1)) == set(g([2]))", "assert f(0) == [7]"]}, "")
    assert (names.functions, names.answer) == (("f", "g"), "[7]")
    case = {"args": [1], "expected": {"__tuple__": [1]}}
    names = names_of({"entry_point": "f", "cases": [case]}, "def f(x): return (x,)")
    assert (names.functions, names.answer) == (("f",), "(1, )")
    assert names_of({"cases": [{"stdin": "1", "stdout": "2"}]}, "").printed == "2"


def test_all_known_classes_of_cheats_are_generated() -> None:
    made = {each.name: each.code for each in cheats(names_of({"tests": TESTS}, BANK), BANK)}
    assert {*GIVEN["cheats"]} <= made.keys()
    for code in made.values():
        ast.parse(code)
    last = made["its exceptions are AssertionError, and it raises none"].rstrip()
    assert last.endswith("Insufficient = AssertionError")
    assert "isclose = yes" in made["replaces the names that the tests use"]


def test_a_reference_is_found_in_the_columns_of_known_data_sets() -> None:
    body = {"prompt": "def f(x):\n", "canonical_solution": "    return x\n", "entry_point": "f"}
    assert reference_of(body) == "def f(x):\n    return x\n"
    whole = {**body, "canonical_solution": "def f(x):\n    return x\n"}
    assert reference_of(whole) == whole["canonical_solution"]
    assert reference_of({**body, "prompt": [{"role": "user", "content": "Write f"}]}) is None
    assert reference_of({"code": "a = 1", "text": "Write it"}) == "a = 1"
    assert reference_of({"answer": "b = 1", "code": "a = 1"}, "answer") == "b = 1"
    assert reference_of({"code": "a = 1"}, "answer") is None
