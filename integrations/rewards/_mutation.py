"""Mutants of tests: the same test with another expected value, so that it must fail."""

import ast
import copy
import random
from typing import Any

from sandboxkit import ConfigurationError

_ATTEMPTS = 20


def mutants(test: ast.Module, count: int, rng: random.Random) -> list[ast.Module]:
    """Up to `count` different ones, at least one. Raises ConfigurationError if there is none.

    Preferred is an assertion `... == value`, of which the value is changed into another of the
    same kind, such that the two tests look alike. Else the assertion is negated.
    """
    original = ast.unparse(test)
    found: dict[str, ast.Module] = {}
    for change in (_change_value, _negate):
        for _ in range(_ATTEMPTS * count):
            mutant = copy.deepcopy(test)
            if len(found) < count and change(mutant, rng):
                source = ast.unparse(ast.fix_missing_locations(mutant))
                if source != original:
                    found.setdefault(source, ast.parse(source))
        if found:
            return list(found.values())
    raise ConfigurationError(f"no mutant can be made of this test: {original[:200]}")


def _asserts(test: ast.Module) -> list[ast.Assert]:
    return [node for node in ast.walk(test) if isinstance(node, ast.Assert)]


def _change_value(test: ast.Module, rng: random.Random) -> bool:
    places = [
        (node.test, side)
        for node in _asserts(test)
        if isinstance(node.test, ast.Compare)
        and len(node.test.ops) == 1
        and isinstance(node.test.ops[0], (ast.Eq, ast.Is))
        for side in ("left", "right")
        if _is_literal(node.test.left if side == "left" else node.test.comparators[0])
    ]
    if not places:
        return False
    compare, side = rng.choice(places)
    node = compare.left if side == "left" else compare.comparators[0]
    value = ast.literal_eval(node)
    other = other_value(value, rng)
    if other == value:
        return False
    replaced = ast.parse(repr(other), mode="eval").body
    if side == "left":
        compare.left = replaced
    else:
        compare.comparators[0] = replaced
    return True


def _negate(test: ast.Module, rng: random.Random) -> bool:
    asserts = _asserts(test)
    if not asserts:
        return False
    chosen = rng.choice(asserts)
    match chosen.test:
        case ast.Compare(ops=[ast.Eq()], comparators=[right]) if rng.random() < 0.5:
            # Equal to everything is caught by this one and not by a negation.
            chosen.test.comparators = [ast.List([right], ast.Load())]
        case _:
            chosen.test = ast.UnaryOp(ast.Not(), chosen.test)
    return True


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


# Any: a literal's value.
def other_value(value: Any, rng: random.Random) -> Any:
    """Another value of the same type, one that might as well have been expected."""
    match value:
        case bool():
            return not value
        case int():
            return value + rng.choice((-1, 1)) * rng.randint(1, max(3, abs(value) // 4))
        case float():
            # Towards zero where it is huge: beyond the largest float is infinity.
            factor = rng.uniform(0.5, 1.5 if abs(value) < 1e300 else 0.9)
            return round(value * factor + rng.choice((-1, 1)), 3)
        case str():
            return _other_text(value, rng)
        case bytes():
            return _other_text(value.decode("latin-1"), rng).encode("latin-1")
        case list() | tuple() if value:
            place = rng.randrange(len(value))
            items = list(value)
            items[place] = other_value(items[place], rng)
            return type(value)(items)
        case dict() if value:
            key = rng.choice(list(value))
            return {**value, key: other_value(value[key], rng)}
        case set() if value:
            gone = rng.choice(sorted(value, key=repr))
            return (value - {gone}) | {other_value(gone, rng)}
        case list():
            return [rng.randint(0, 9)]
        case tuple():
            return (rng.randint(0, 9),)
        case dict():
            return {rng.randint(0, 9): rng.randint(0, 9)}
        case set():
            return {rng.randint(0, 9)}
        case None:
            return rng.randint(0, 9)
        case _:
            return None


def _other_text(text: str, rng: random.Random) -> str:
    if not text:
        return rng.choice("abc")
    place = rng.randrange(len(text))
    letters = {each for each in text if each != text[place]} or set("abcxyz019 ") - set(text)
    return text[:place] + rng.choice(sorted(letters)) + text[place + 1 :]
