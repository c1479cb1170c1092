"""Wrong variants of a reference: small, different, the same for the same seed."""

import ast

from sandboxkit.integrations.rewards.doctor._check import mutants
from tests.data_here import beside

GIVEN = beside(__file__)
SOURCE = GIVEN["source"]


def test_each_kind_of_change_is_made() -> None:
    assert {*GIVEN["changes"]} <= {*mutants(SOURCE, 100).values()}


def test_documentation_annotations_and_defaults_stay() -> None:
    for code in mutants(SOURCE, 100):
        function = ast.parse(code).body[1]
        assert isinstance(function, ast.FunctionDef)
        assert ast.unparse(function.args) == "shape: str='square', side: int=1"
        assert ast.get_docstring(function) == "The area."


def test_all_are_different_parse_and_depend_on_the_seed_alone() -> None:
    few = mutants(SOURCE, 10, seed=1)
    assert few == mutants(SOURCE, 10, seed=1)
    assert few != mutants(SOURCE, 10, seed=2)
    assert len(few) == 10
    assert ast.unparse(ast.parse(SOURCE)) not in few


def test_a_program_is_changed_at_its_top_level_too() -> None:
    assert (
        "print(int(input()) * 2)  ->  print(int(input()) * 3)"
        in mutants("print(int(input()) * 2)\n", 20).values()
    )
