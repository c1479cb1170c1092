"""Wrong variants of a reference: small, different, the same for the same seed."""

import ast

from sandboxkit.integrations.rewards.doctor._mutants import mutants

SOURCE = '''
import math

def area(shape: str = "square", side: int = 1) -> float:
    """The area."""
    total = 0
    for step in range(side):
        total += step
    if shape == "circle" and side > 0:
        return math.pi * side ** 2
    return -total + 1
'''


def changes(count: int = 100) -> set[str]:
    return {each.change for each in mutants(SOURCE, count)}


def test_each_kind_of_change_is_made() -> None:
    found = changes()
    for change in (
        "for step in range(side):  ->  for step in range(side + 1):",
        "for step in range(side):  ->  for step in range(side - 1):",
        "total = 0  ->  total = 1",
        "total = 0  ->  total = -1",
        "total += step  ->  pass",
        "total += step  ->  total -= step",
        "return -total + 1  ->  return None",
        "return -total + 1  ->  return -total - 1",
        "return -total + 1  ->  return total + 1",
        "if shape == 'circle' and side > 0:  ->  if shape == 'circle' or side > 0:",
        "if shape == 'circle' and side > 0:  ->  if shape != 'circle' and side > 0:",
        "if shape == 'circle' and side > 0:  ->  if shape == 'circle' and side >= 0:",
        "if shape == 'circle' and side > 0:  ->  if not (shape == 'circle' and side > 0):",
        "return math.pi * side ** 2  ->  return math.pi * (side * 2)",
    ):
        assert change in found


def test_documentation_annotations_and_defaults_stay() -> None:
    for each in mutants(SOURCE, 100):
        function = ast.parse(each.code).body[1]
        assert isinstance(function, ast.FunctionDef)
        assert ast.unparse(function.args) == "shape: str='square', side: int=1"
        assert ast.get_docstring(function) == "The area."


def test_all_are_different_parse_and_depend_on_the_seed_alone() -> None:
    few = mutants(SOURCE, 10, seed=1)
    assert few == mutants(SOURCE, 10, seed=1)
    assert few != mutants(SOURCE, 10, seed=2)
    assert len({each.code for each in few}) == 10
    assert ast.unparse(ast.parse(SOURCE)) not in {each.code for each in few}


def test_a_program_is_changed_at_its_top_level_too() -> None:
    assert "print(int(input()) * 2)  ->  print(int(input()) * 3)" in {
        each.change for each in mutants("print(int(input()) * 2)\n", 20)
    }
