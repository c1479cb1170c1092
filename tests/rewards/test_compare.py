"""Which values are equal, and how tests are taken apart."""

import collections
import datetime
import math
from ast import literal_eval
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import HostCompare
from sandboxkit.integrations.rewards._cases import FunctionCase, declared, from_assert, imported
from sandboxkit.integrations.rewards._in_sandbox.encode import encode
from sandboxkit.integrations.rewards._values import Comparison
from tests.rewards.corpus import DATA, read

ASSERTS = read(DATA / "asserts.toml")
"""Tests of one line, some of which the host compares itself."""
STRICT, PYTHON, NEAR = Comparison(), Comparison(strict=False), Comparison(rel_tol=1e-6)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False, min_value=-(10**50), max_value=10**50)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(scalars, inner, max_size=4)
        | st.sets(scalars, max_size=4)
    ),
    max_leaves=8,
)


@given(values, values)
def test_equal_as_in_python(left: Any, right: Any) -> None:
    assert PYTHON.equal(encode(left), encode(right)) == (left == right)


@given(values)
def test_a_value_equals_itself(value: Any) -> None:
    for comparison in (STRICT, PYTHON, NEAR):
        assert comparison.equal(encode(value), encode(value))


@pytest.mark.parametrize(("left", "right"), [*map(literal_eval, ASSERTS["strict"])])
def test_strict_compares_types(left: Any, right: Any) -> None:
    assert not STRICT.equal(encode(left), encode(right))


NAN = (math.nan, math.nan)


@pytest.mark.parametrize(
    ("pair", "near"), [(NAN, True), *((literal_eval(pair), near) for pair, near in ASSERTS["near"])]
)
def test_a_tolerance_holds_for_floats(pair: tuple[Any, Any], near: bool) -> None:
    assert NEAR.equal(*map(encode, pair)) is near


def test_subclasses_are_their_base_and_other_objects_equal_nothing() -> None:
    point = collections.namedtuple("point", "x y")
    assert PYTHON.equal(encode(point(1, 2)), encode((1, 2)))
    assert PYTHON.equal(encode(collections.Counter("aab")), encode({"a": 2, "b": 1}))
    assert PYTHON.equal(encode({"a": 1}.keys()), encode({"a"}))
    assert not PYTHON.equal(encode(datetime.date(2020, 1, 2)), encode("2020-01-02"))
    with pytest.raises(ConfigurationError, match="not plain data"):
        declared({"entry_point": "f", "cases": [{"expected": [object()]}]})


@pytest.mark.parametrize(("line", "source"), ASSERTS["taken_apart"].items())
def test_a_test_is_taken_apart(line: str, source: str) -> None:
    case = from_assert(line)
    assert isinstance(case, FunctionCase)
    assert case.source == source


@pytest.mark.parametrize("line", ASSERTS["left_whole"])
def test_a_comparison_never_goes_into_the_sandbox(line: str) -> None:
    assert from_assert(line, {"check"}) is None


@pytest.mark.parametrize(
    "task",
    [*ASSERTS["refused"], {"cases": [{"args": [object()], "expected": 1}], "entry_point": "f"}],
)
def test_a_case_that_cannot_be_used_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HostCompare().validate(task)


@pytest.mark.parametrize(("left", "right"), [*map(literal_eval, ASSERTS["numbers"])])
def test_numbers_of_any_type_are_equal_unless_strict(left: Any, right: Any) -> None:
    assert PYTHON.equal(encode(left), encode(right))
    assert PYTHON.equal(encode([left]), encode([right]))


def test_setup_beside_a_submission_has_only_imports() -> None:
    assert imported("import math\nfrom os import path as p, sep") == {"math", "p", "sep"}
    assert imported("N = 3") is None
    assert imported("def oracle(x): return x") is None
